"""Whether the database keeps what it acknowledges when its nodes die."""

from __future__ import annotations

import logging
from contextlib import suppress

from agl_stream.errors import AglStreamError
from agl_stream.streams.store.cassandra.connection import Connection

_SYNC = "SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'"
_PERIODIC = "periodic"

logger = logging.getLogger(__name__)


def warn_of_late_sync(connection: Connection) -> None:
    """Say so when a node acknowledges writes that are not on its disk yet. With ``periodic`` (Cassandra's default) a
    node that dies loses up to ten seconds of them; replicas on other nodes have them, unless those die as well. The
    sink has gone on by then and does not write them again: only a rebuilt store has them.
    """
    # a user without the right to look at settings works all the same
    with suppress(AglStreamError), connection.explained():
        for (value,) in connection.session.execute(_SYNC):
            if value == _PERIODIC:
                logger.warning(
                    "the state store at %s acknowledges writes before they are on the disk (commitlog_sync: periodic): "
                    "nodes that die together lose up to 10 s of them; set commitlog_sync: group or batch in "
                    "cassandra.yaml",
                    connection.address,
                )
