"""Kafka Connect: the plugin that reads our events, and ready configurations of sinks."""
