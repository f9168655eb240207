"""Waiting until all nodes of a cluster have the same schema.

The driver waits after each change, for the nodes it knows; in a cluster that has just started it may know too few,
and then the next statement meets a node without the table. So the nodes are asked themselves, each about all others.
"""

from __future__ import annotations

import time
from typing import Any

from agl_stream.errors import EngineUnreachable
from agl_stream.streams.store.cassandra.connection import Connection, Session
from agl_stream.streams.store.cassandra.driver import DriverException, NoHostAvailable, OperationTimedOut

_LOCAL = "SELECT schema_version FROM system.local"
_PEERS = "SELECT schema_version FROM system.peers_v2"
_STEP_SECONDS = 5.0


def wait_agreement(connection: Connection, *, timeout_seconds: float = 60.0, gathering_seconds: float = 15.0) -> None:
    """Returns once every node that is up sees every other and has the same schema. Fewer nodes than the address names
    are waited for, too, but only ``gathering_seconds``: one of them may be down.

    Raises EngineUnreachable after ``timeout_seconds``.
    """
    started = time.monotonic()
    named = len(connection.address.contact_points)
    while True:
        versions, up = _look(connection.session)
        waited = time.monotonic() - started
        if versions is not None and len(versions) == 1 and (up >= named or waited > gathering_seconds):
            return
        if waited > timeout_seconds:
            raise EngineUnreachable(
                f"the nodes of {connection.address} have not come to one schema within {timeout_seconds:g} s; look at "
                "`nodetool describecluster`"
            )
        time.sleep(0.1)


def _look(session: Session) -> tuple[set[Any] | None, int]:
    """The schema versions that the nodes tell of themselves and each other, None while they do not see each other;
    and how many nodes are up."""
    hosts = [host for host in session.cluster.metadata.all_hosts() if host.is_up is not False]
    everybody = len(session.cluster.metadata.all_hosts())
    versions: set[Any] = set()
    for host in hosts:
        try:
            told = session.execute(_LOCAL, host=host, timeout=_STEP_SECONDS).all()
            peers = session.execute(_PEERS, host=host, timeout=_STEP_SECONDS).all()
        except (NoHostAvailable, DriverException, OperationTimedOut):
            return None, len(hosts)
        if len(peers) != everybody - 1:
            return None, len(hosts)
        versions |= {version for (version,) in told}
        if everybody == len(hosts):
            versions |= {version for (version,) in peers}
    return versions, len(hosts)
