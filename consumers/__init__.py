"""Everything that takes records off the log: the batch loop, the span sink, the runner."""
