"""Engines: the embedded broker and schema registry, and what runs the real ones."""
