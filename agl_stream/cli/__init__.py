"""The command line: one verb a module, each loaded only when it is called.

A verb's module defines `command` (a click command or group) and imports what is heavy inside the function,
so that `agl-stream status --help` answers at once. `main.py` lists the verbs.
"""
