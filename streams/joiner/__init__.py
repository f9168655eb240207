"""The joiner: spans of a closed attempt become triplets, once, and again when something arrives late."""
