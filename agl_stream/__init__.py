"""agl-stream."""
