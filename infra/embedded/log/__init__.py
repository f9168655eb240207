"""The log of one partition: batches, segments with index, producers, retention, compaction, fsync."""
