"""Measurements of the whole system: what `agl-stream bench` runs."""
