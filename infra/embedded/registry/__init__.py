"""The Confluent-compatible schema registry."""
