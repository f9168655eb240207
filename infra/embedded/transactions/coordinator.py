"""The transaction coordinator.

A transaction is: producer epoch, the partitions written to, and the consumer offsets to commit with it. Every
change is in the journal before it is answered, and the decision to commit or abort before the first marker is
written. So a kill at any point leaves either an open transaction, which its producer goes on with or its timeout
ends, or a decision, which the next start carries out on the partitions that it had not reached.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.groups.offsets import OffsetKey, OffsetStore
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.server.topics import Catalogue
from agl_stream.infra.embedded.storage import Journal

logger = logging.getLogger(__name__)

_LAST_EPOCH = 0x7FFE


class State(enum.StrEnum):
    EMPTY = "empty"
    ONGOING = "ongoing"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


PendingOffset = tuple[str, str, int, int, int, str]
"""group, topic, partition, offset, leader epoch, metadata"""


@dataclass(slots=True)
class Transaction:
    """Coordinator state of one transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    updated_ms: int = 0
    partitions: set[tuple[str, int]] = field(default_factory=set)
    offsets: dict[tuple[str, OffsetKey], tuple[int, int, str]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None

    def entry(self) -> list[object]:
        """What the journal keeps."""
        offsets = [[group, *key, *committed] for (group, key), committed in self.offsets.items()]
        return [
            self.transactional_id,
            self.producer_id,
            self.epoch,
            self.timeout_ms,
            self.state,
            self.updated_ms,
            sorted(self.partitions),
            offsets,
        ]

    def clear(self) -> None:
        self.partitions.clear()
        self.offsets.clear()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class TransactionCoordinator:
    """Transactions of all producers. Methods answer with a protocol error code; NONE is success."""

    def __init__(self, path: Path, catalogue: Catalogue, offsets: OffsetStore, config: BrokerConfig) -> None:
        """Load the journal; finish() then carries out what a kill interrupted."""
        self._catalogue = catalogue
        self._offsets = offsets
        self._config = config
        self._transactions: dict[str, Transaction] = {}
        self._by_producer: dict[int, Transaction] = {}
        self._journal = Journal(path)
        for entry in self._journal.load():
            name, producer_id, epoch, timeout_ms, state, updated_ms, partitions, pending = entry
            self._add(
                Transaction(
                    name,
                    producer_id,
                    epoch,
                    timeout_ms,
                    State(state),
                    updated_ms,
                    {(topic, number) for topic, number in partitions},
                    {(group, OffsetKey(topic, number)): (*rest,) for group, topic, number, *rest in pending},
                )
            )

    def start(self) -> None:
        """Carry out decisions that a kill interrupted, time the open transactions, end what nobody owns."""
        for transaction in list(self._transactions.values()):
            if transaction.state in (State.COMMITTING, State.ABORTING):
                logger.warning(
                    "transaction %r was %s at the stop: finishing it", transaction.transactional_id, transaction.state
                )
                self._carry_out(transaction)
            elif transaction.state is State.ONGOING:
                self._arm(transaction)
        for log in self._catalogue.logs():
            for producer_id in log.producers.open_producers:
                owner = self._by_producer.get(producer_id)
                if owner is None or (log.topic, log.partition) not in owner.partitions:
                    logger.warning("%r: aborting a transaction of producer %d that no one owns", log, producer_id)
                    log.append_marker(producer_id, log.producers.epoch(producer_id), commit=False)
        self.expire()

    def _add(self, transaction: Transaction) -> None:
        previous = self._transactions.get(transaction.transactional_id)
        if previous is not None and previous.producer_id != transaction.producer_id:
            self._by_producer.pop(previous.producer_id, None)
        self._transactions[transaction.transactional_id] = transaction
        self._by_producer[transaction.producer_id] = transaction

    def _save(self, transaction: Transaction) -> None:
        transaction.updated_ms = time.time_ns() // 1_000_000
        self._journal.append([transaction.entry()])
        if self._config.flush_policy == "every-write":
            self._journal.flush()
        if self._journal.mostly_history:
            self._journal.rewrite(known.entry() for known in self._transactions.values())

    # Requests

    def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None
    ) -> tuple[ErrorCode, int, int]:
        """(error, producer id, epoch). Ends what an earlier producer of the id left open and fences that producer.

        `expected` is the (producer id, epoch) that a recovering producer claims to have.
        """
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1, -1
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            transaction = Transaction(transactional_id, self._catalogue.new_producer_id(), 0, timeout_ms)
            self._add(transaction)
        else:
            if expected is not None and expected != (transaction.producer_id, transaction.epoch):
                return ErrorCode.PRODUCER_FENCED, -1, -1
            self._fence(transaction)
            if transaction.epoch >= _LAST_EPOCH:
                del self._by_producer[transaction.producer_id]
                transaction.producer_id, transaction.epoch = self._catalogue.new_producer_id(), 0
                self._by_producer[transaction.producer_id] = transaction
            transaction.timeout_ms = timeout_ms
            transaction.state = State.EMPTY
        self._save(transaction)
        return ErrorCode.NONE, transaction.producer_id, transaction.epoch

    def _fence(self, transaction: Transaction) -> None:
        """Raise the epoch, so that the current producer is refused from now on, and abort what it has open."""
        transaction.epoch += 1
        if transaction.state is State.ONGOING:
            self._end(transaction, State.ABORTING)

    def check(self, transactional_id: str, producer_id: int, epoch: int) -> ErrorCode:
        """Whether this producer is the current one of the id."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None or transaction.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if transaction.epoch == epoch else ErrorCode.PRODUCER_FENCED

    def check_batch(self, producer_id: int, epoch: int, partition: tuple[str, int], transactional: bool) -> ErrorCode:
        """Whether a batch may be appended: fenced producers may not, nor transactional ones outside a transaction."""
        transaction = self._by_producer.get(producer_id)
        if transaction is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING if transactional else ErrorCode.NONE
        if epoch != transaction.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if transactional and (transaction.state is not State.ONGOING or partition not in transaction.partitions):
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE

    def add_partitions(self, transactional_id: str, partitions: set[tuple[str, int]]) -> None:
        """Make partitions part of the transaction, which begins if none is open. The caller has called check()."""
        transaction = self._transactions[transactional_id]
        if transaction.state is State.ONGOING and partitions <= transaction.partitions:
            return
        self._begin(transaction)
        transaction.partitions |= partitions
        self._save(transaction)

    def add_group(self, transactional_id: str) -> None:
        """A consumer group's offsets will come: the transaction begins if none is open."""
        transaction = self._transactions[transactional_id]
        if transaction.state is not State.ONGOING:
            self._begin(transaction)
            self._save(transaction)

    def add_offsets(self, transactional_id: str, offsets: list[PendingOffset]) -> ErrorCode:
        """Offsets that become committed with the transaction."""
        transaction = self._transactions[transactional_id]
        if transaction.state is not State.ONGOING:
            return ErrorCode.INVALID_TXN_STATE
        for group, topic, partition, offset, leader_epoch, metadata in offsets:
            transaction.offsets[group, OffsetKey(topic, partition)] = (offset, leader_epoch, metadata)
        self._save(transaction)
        return ErrorCode.NONE

    def end(self, transactional_id: str, commit: bool) -> ErrorCode:
        """Commit or abort; a repeated request for the outcome that is already there is fine."""
        transaction = self._transactions[transactional_id]
        decision = State.COMMITTING if commit else State.ABORTING
        if transaction.state is State.ONGOING:
            self._end(transaction, decision)
        elif transaction.state is decision:
            self._carry_out(transaction)
        if transaction.state is decision:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        outcome = State.COMMITTED if commit else State.ABORTED
        return ErrorCode.NONE if transaction.state is outcome else ErrorCode.INVALID_TXN_STATE

    def has_pending_offset(self, group: str, key: OffsetKey) -> bool:
        """Whether an open transaction is about to change this committed offset."""
        return any((group, key) in transaction.offsets for transaction in self._transactions.values())

    # Progress

    def _begin(self, transaction: Transaction) -> None:
        if transaction.state is not State.ONGOING:
            transaction.clear()
            transaction.state = State.ONGOING
            self._arm(transaction)

    def _arm(self, transaction: Transaction) -> None:
        loop = asyncio.get_running_loop()
        transaction.timer = loop.call_later(transaction.timeout_ms / 1000, self._time_out, transaction)

    def _time_out(self, transaction: Transaction) -> None:
        if transaction.state is State.ONGOING:
            logger.warning(
                "transaction %r is open for more than its %d ms: aborting it",
                transaction.transactional_id,
                transaction.timeout_ms,
            )
            self._fence(transaction)

    def _end(self, transaction: Transaction, decision: State) -> None:
        transaction.state = decision
        try:
            self._save(transaction)
        except OSError:
            transaction.state = State.ONGOING
            raise
        self._carry_out(transaction)

    def _carry_out(self, transaction: Transaction) -> None:
        """Write what was decided; the state stays as it is when a partition cannot be written, for another try."""
        commit = transaction.state is State.COMMITTING
        for topic, number in sorted(transaction.partitions):
            log = self._catalogue.partition(topic, number)
            if log is None or transaction.producer_id not in log.producers.open_producers:
                continue
            if log.append_marker(transaction.producer_id, transaction.epoch, commit).error is not ErrorCode.NONE:
                return
        if commit:
            self._commit_offsets(transaction)
        transaction.clear()
        transaction.state = State.COMMITTED if commit else State.ABORTED
        self._save(transaction)

    def _commit_offsets(self, transaction: Transaction) -> None:
        by_group: dict[str, list[tuple[OffsetKey, int, int, str]]] = {}
        for (group, key), committed in transaction.offsets.items():
            by_group.setdefault(group, []).append((key, *committed))
        for group, offsets in by_group.items():
            self._offsets.commit(group, offsets)

    def expire(self) -> None:
        """Forget transactional ids that were not used for a long time."""
        before_ms = time.time_ns() // 1_000_000 - self._config.transactional_id_expiration_ms
        idle = [
            transaction
            for transaction in self._transactions.values()
            if transaction.updated_ms < before_ms and transaction.state is not State.ONGOING
        ]
        for transaction in idle:
            del self._transactions[transaction.transactional_id]
            self._by_producer.pop(transaction.producer_id, None)
        if idle:
            self._journal.rewrite(known.entry() for known in self._transactions.values())

    def flush(self) -> None:
        self._journal.flush()

    def close(self) -> None:
        for transaction in self._transactions.values():
            if transaction.timer is not None:
                transaction.timer.cancel()
        self._journal.rewrite(known.entry() for known in self._transactions.values())
        self._journal.close()
