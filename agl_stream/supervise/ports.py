"""Ports for local processes: the wanted one, or free ones that stay usable over restarts."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Collection

from agl_stream.errors import PortInUse

HOST = "127.0.0.1"

_FIRST_PORT, _LAST_PORT = 20_000, 32_000
"""Below Linux's range for outgoing connections (32768 and up). In that range a client that keeps
connecting to a server being restarted can be given the server's own port and connect to itself,
after which the server cannot bind it again."""


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:`port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def free_ports(count: int, *, without: Collection[int] = ()) -> list[int]:
    """`count` different ports nobody listens on now, none of them in `without`."""
    start = random.SystemRandom().randrange(_FIRST_PORT, _LAST_PORT)
    found: list[int] = []
    for step in range(_LAST_PORT - _FIRST_PORT):
        port = _FIRST_PORT + (start - _FIRST_PORT + step) % (_LAST_PORT - _FIRST_PORT)
        if port not in without and is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise PortInUse(f"no {count} free ports on {HOST} between {_FIRST_PORT} and {_LAST_PORT}: stop something there")


def claim_port(wanted: int | None, default: int, *, option: str, taken: Collection[int] = ()) -> tuple[int, bool]:
    """The port to use and whether it replaces a default that is taken.

    An explicitly `wanted` port that is in use is an error that names `option`; a default that is in
    use gives way to a free port, because nobody has written it down anywhere.
    """
    if wanted is not None:
        if wanted in taken or not is_free(wanted):
            raise PortInUse(f"port {wanted} ({option}) is in use: choose another, or leave {option} out")
        return wanted, False
    if default not in taken and is_free(default):
        return default, False
    return free_ports(1, without=taken)[0], True
