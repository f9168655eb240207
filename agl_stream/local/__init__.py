"""The whole system on one machine: its folder, its ports, its processes below one supervisor.

`agl-stream up` runs the engines and streams; `agl-stream demo` adds server, runners and trainer.
"""
