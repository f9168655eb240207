"""The broker process: connections, request handlers, topics, housekeeping."""
