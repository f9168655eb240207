"""Requested = trained + dropped + failed + cancelled + in flight, at all times."""
