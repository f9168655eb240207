"""What writes events: the event producer, tasks, spans and emitters, tracers, the LLM gateway.

Imports schemas only.
"""
