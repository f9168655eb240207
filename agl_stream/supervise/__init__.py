"""Keeps a set of local processes alive: start, readiness, restart, logs, resource use, orderly stop.

`agl-stream up` and `agl-stream demo` run every part of the system as a process of its own below one
`Supervisor`. Nothing here knows Kafka; it works for any command line.
"""

from agl_stream.supervise.child import ProcessSpec
from agl_stream.supervise.ports import claim_port, free_ports
from agl_stream.supervise.restart_policy import RestartPolicy
from agl_stream.supervise.supervisor import ProcessFailed, Supervisor
from agl_stream.supervise.usage import ProcessUsage, pss_bytes, rss_bytes

__all__ = [
    "ProcessFailed",
    "ProcessSpec",
    "ProcessUsage",
    "RestartPolicy",
    "Supervisor",
    "claim_port",
    "free_ports",
    "pss_bytes",
    "rss_bytes",
]
