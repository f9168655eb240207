"""What turns events into state and new events: lifecycle, watchdog, materialisers, state store, joiner, ledger.

Each part has a pure ``core`` (no clock, no network, no framework) and a thin ``app`` that wires it to the log.
"""
