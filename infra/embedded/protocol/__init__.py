"""The Kafka protocol: which requests, their bytes, error codes."""
