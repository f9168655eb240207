"""What a batch consumer is made of: the handler that the loop calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from agl_stream.consumers.record import Partition, Record


class BatchHandler:
    """Base of batch handlers; only ``handle`` has to be written.

    The loop calls all methods on one thread of its own, never two at once, so a handler needs no locks. A method
    that raises EngineUnreachable, DeliveryFailed, BufferFull or TimeoutError is called again with the same
    arguments after a pause, until it returns or the loop is stopped; any other exception stops the loop.
    """

    def handle(self, records: list[Record]) -> Future[None] | None:
        """Process a batch; records of one partition come in offset order, and may come again.

        Return None once everything is durable downstream. Or return a Future that completes when it is: then the
        loop goes on with further batches (``max_in_flight``), which may finish in any order.
        """
        raise NotImplementedError

    def assigned(self, partitions: list[Partition]) -> Mapping[Partition, int]:
        """These partitions are ours from now on. The offsets returned win over the group's committed ones;
        a partition left out starts at its committed offset, or the beginning of the log."""
        return {}

    def revoked(self, partitions: list[Partition], *, lost: bool) -> None:
        """These partitions are somebody else's. ``lost``: they have been for a while, nothing more was committed."""

    def reached_end(self, ends: list[tuple[Partition, int]]) -> None:
        """The consumer has read each of these partitions up to its end, the offset given (a loop with
        ``partition_eof`` only). Offsets that carry no records, such as transaction markers, count as read."""

    def idle(self) -> None:
        """Called when nothing came for ``poll_seconds``."""

    def commit_floors(self) -> Iterable[tuple[Partition, int]]:
        """Offsets that the commit must not pass, for handlers that hold records back. Asked after each call."""
        return ()
