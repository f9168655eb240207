"""The transaction coordinator.

A transaction is: producer epoch, the partitions written to, and the consumer offsets to commit with it. Every
change is in the journal before it is answered, and the decision to commit or abort before the first marker is
written. So a kill at any point leaves either an open transaction, which its producer goes on with or its timeout
ends, or a decision, which the next start carries out on the partitions that it had not reached.

A full disk changes nothing: what cannot be written is not so, and the producer is told to try again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.groups.offsets import OffsetKey, OffsetStore
from agl_stream.infra.embedded.journal import Journal
from agl_stream.infra.embedded.log.partition_log import PartitionLog
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.server.topics import Catalogue
from agl_stream.infra.embedded.transactions.transaction import DECIDED, SETTLED, State, Transaction

logger = logging.getLogger(__name__)

_LAST_EPOCH = 0x7FFE
_RETRY_SECONDS = 1.0

PendingOffset = tuple[str, str, int, int, int, str]
"""group, topic, partition, offset, leader epoch, metadata"""


class TransactionCoordinator:
    """Transactions of all producers. Methods answer with a protocol error code; NONE is success."""

    def __init__(self, path: Path, catalogue: Catalogue, offsets: OffsetStore, config: BrokerConfig) -> None:
        """Load the journal; start() then carries out what a kill interrupted. Raises DamagedFile."""
        self._catalogue = catalogue
        self._offsets = offsets
        self._config = config
        self._transactions: dict[str, Transaction] = {}
        self._by_producer: dict[int, Transaction] = {}
        self._journal = Journal(path)
        self._retry: asyncio.TimerHandle | None = None
        for entry in self._journal.load():
            self._add(Transaction.from_entry(entry))

    def start(self) -> None:
        """Carry out decisions that a kill interrupted, time the open transactions, end what nobody owns."""
        for transaction in list(self._transactions.values()):
            if transaction.state in DECIDED:
                logger.warning(
                    "transaction %r was %s at the stop: finishing it", transaction.transactional_id, transaction.state
                )
                self._carry_out(transaction)
            elif transaction.state is State.ONGOING:
                self._arm(transaction)
        for log in self._catalogue.logs():
            for producer_id in log.producers.open_producers:
                self._settle_orphan(log, producer_id)
        self.expire()

    def _settle_orphan(self, log: PartitionLog, producer_id: int) -> None:
        """End a transaction that is open in the log only: by its decision, when a power cut took the marker."""
        owner = self._by_producer.get(producer_id)
        partition = (log.topic, log.partition)
        commit = False
        if owner is not None:
            if owner.state is State.ONGOING and partition in owner.partitions:
                return
            lost = owner.markers.get(partition, -1)
            if owner.state is State.COMMITTED and log.producers.first_open_offset(producer_id) < lost:
                commit = True
        outcome = "committing" if commit else "aborting"
        logger.warning("%r: %s a transaction of producer %d that is open here only", log, outcome, producer_id)
        log.append_marker(producer_id, log.producers.epoch(producer_id), commit)

    def _add(self, transaction: Transaction) -> None:
        previous = self._transactions.get(transaction.transactional_id)
        if previous is not None and previous.producer_id != transaction.producer_id:
            self._by_producer.pop(previous.producer_id, None)
        self._transactions[transaction.transactional_id] = transaction
        self._by_producer[transaction.producer_id] = transaction

    def transactions(self) -> Iterator[Transaction]:
        """Every transactional id, for those who look and change nothing."""
        yield from self._transactions.values()

    def _entries(self) -> Iterator[list[object]]:
        for transaction in self._transactions.values():
            yield transaction.entry()

    def _save(self, transaction: Transaction) -> None:
        before_ms, transaction.updated_ms = transaction.updated_ms, _now_ms()
        try:
            self._journal.append([transaction.entry()])
        except OSError:
            transaction.updated_ms = before_ms
            raise
        self._journal.rewrite_if_mostly_history(self._entries())

    def _change(self, transaction: Transaction, change: Callable[[], None]) -> ErrorCode:
        """Make a change and save it; undone, and to be tried again by the client, when it cannot be saved."""
        before = transaction.entry()
        try:
            change()
            self._save(transaction)
        except OSError as error:
            transaction.restore(before)
            logger.error("transaction %r: not saved (%s)", transaction.transactional_id, error.strerror)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def known(self) -> list[Transaction]:
        """Every transactional id; not to be changed."""
        return list(self._transactions.values())

    def get(self, transactional_id: str) -> Transaction | None:
        """One of known()."""
        return self._transactions.get(transactional_id)

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
        try:
            if transaction is None:
                transaction = Transaction(transactional_id, self._catalogue.new_producer_id(), 0, timeout_ms)
                self._save(transaction)
                self._add(transaction)
                return ErrorCode.NONE, transaction.producer_id, transaction.epoch
            if expected is not None and expected != (transaction.producer_id, transaction.epoch):
                return ErrorCode.PRODUCER_FENCED, -1, -1
            if not self._is_settled(transaction):
                return ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1
            self._fence(transaction)
            if not self._is_settled(transaction):
                return ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1
            renewed = self._catalogue.new_producer_id() if transaction.epoch >= _LAST_EPOCH else None
        except OSError as error:
            logger.error("transaction %r: no producer id (%s)", transactional_id, error.strerror)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1
        known = transaction
        old_id = known.producer_id

        def begin_anew() -> None:
            if renewed is not None:
                known.producer_id, known.epoch = renewed, 0
                known.markers.clear()
            known.timeout_ms, known.state = timeout_ms, State.EMPTY

        error = self._change(known, begin_anew)
        if error is not ErrorCode.NONE:
            return error, -1, -1
        if known.producer_id != old_id:
            del self._by_producer[old_id]
            self._by_producer[known.producer_id] = known
        return ErrorCode.NONE, known.producer_id, known.epoch

    def _fence(self, transaction: Transaction) -> None:
        """Raise the epoch, so that the current producer is refused from now on, and abort what it has open."""
        transaction.epoch += 1
        if transaction.state is State.ONGOING:
            try:
                self._end(transaction, State.ABORTING)
            except OSError:
                transaction.epoch -= 1
                raise

    def _is_settled(self, transaction: Transaction) -> bool:
        """Whether no decision is left to be carried out; one is tried again first."""
        if transaction.state in DECIDED:
            self._carry_out(transaction)
        return transaction.state not in DECIDED

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

    def add_partitions(self, transactional_id: str, partitions: set[tuple[str, int]]) -> ErrorCode:
        """Make partitions part of the transaction, which begins if none is open. The caller has called check()."""
        transaction = self._transactions[transactional_id]
        if transaction.state is State.ONGOING and partitions <= transaction.partitions:
            return ErrorCode.NONE
        return self._begin_or_go_on(transaction, lambda: transaction.partitions.update(partitions))

    def add_group(self, transactional_id: str) -> ErrorCode:
        """A consumer group's offsets will come: the transaction begins if none is open."""
        transaction = self._transactions[transactional_id]
        if transaction.state is State.ONGOING:
            return ErrorCode.NONE
        return self._begin_or_go_on(transaction, lambda: None)

    def add_offsets(self, transactional_id: str, offsets: list[PendingOffset]) -> ErrorCode:
        """Offsets that become committed with the transaction."""
        transaction = self._transactions[transactional_id]
        if transaction.state is not State.ONGOING:
            return ErrorCode.INVALID_TXN_STATE

        def add() -> None:
            for group, topic, partition, offset, leader_epoch, metadata in offsets:
                transaction.offsets[group, OffsetKey(topic, partition)] = (offset, leader_epoch, metadata)

        return self._change(transaction, add)

    def end(self, transactional_id: str, commit: bool) -> ErrorCode:
        """Commit or abort; a repeated request for the outcome that is already there is fine."""
        transaction = self._transactions[transactional_id]
        decision = State.COMMITTING if commit else State.ABORTING
        if transaction.state is State.ONGOING:
            try:
                self._end(transaction, decision)
            except OSError as error:
                logger.error("transaction %r: not decided (%s)", transactional_id, error.strerror)
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif transaction.state is decision:
            self._carry_out(transaction)
        if transaction.state is decision:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        outcome = State.COMMITTED if commit else State.ABORTED
        return ErrorCode.NONE if transaction.state is outcome else ErrorCode.INVALID_TXN_STATE

    def marked_logs(self, transactional_id: str) -> list[PartitionLog]:
        """The partitions in which the last transaction has markers."""
        markers = self._transactions[transactional_id].markers
        return [log for topic, number in markers if (log := self._catalogue.partition(topic, number)) is not None]

    def has_pending_offset(self, group: str, key: OffsetKey) -> bool:
        """Whether an open transaction is about to change this committed offset."""
        return any((group, key) in transaction.offsets for transaction in self._transactions.values())

    # Progress

    def _begin_or_go_on(self, transaction: Transaction, change: Callable[[], None]) -> ErrorCode:
        if not self._is_settled(transaction):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        begins = transaction.state is not State.ONGOING

        def begin() -> None:
            if begins:
                if self._syncs:
                    for log in self.marked_logs(transaction.transactional_id):
                        log.flush()
                transaction.partitions, transaction.offsets, transaction.markers = set(), {}, {}
                transaction.state, transaction.started_ms = State.ONGOING, _now_ms()
            change()

        error = self._change(transaction, begin)
        if error is ErrorCode.NONE and begins:
            self._arm(transaction)
        return error

    @property
    def _syncs(self) -> bool:
        return self._config.flush_policy == "every-write"

    def _arm(self, transaction: Transaction) -> None:
        remaining_ms = transaction.started_ms + transaction.timeout_ms - _now_ms()
        seconds = min(max(remaining_ms, 0), transaction.timeout_ms) / 1000
        self._time_out_in(seconds, transaction)

    def _time_out_in(self, seconds: float, transaction: Transaction) -> None:
        transaction.stop_timer()
        transaction.timer = asyncio.get_running_loop().call_later(seconds, self._time_out, transaction)

    def _time_out(self, transaction: Transaction) -> None:
        if transaction.state is not State.ONGOING:
            return
        logger.warning(
            "transaction %r is open for more than its %d ms: aborting it",
            transaction.transactional_id,
            transaction.timeout_ms,
        )
        try:
            self._fence(transaction)
        except OSError as error:
            logger.error("transaction %r: not aborted (%s)", transaction.transactional_id, error.strerror)
            self._time_out_in(_RETRY_SECONDS, transaction)

    def _end(self, transaction: Transaction, decision: State) -> None:
        """Decide, durably under every-write, and carry out. Raises OSError; nothing is decided then."""
        transaction.state = decision
        try:
            self._save(transaction)
            if self._syncs:
                self._journal.flush()
        except OSError:
            transaction.state = State.ONGOING
            raise
        transaction.stop_timer()
        self._carry_out(transaction)

    def _carry_out(self, transaction: Transaction) -> None:
        """Write what was decided; tried again in a second where the file system refuses."""
        commit = transaction.state is State.COMMITTING
        try:
            for partition in sorted(transaction.partitions):
                log = self._catalogue.partition(*partition)
                if log is None or transaction.producer_id not in log.producers.open_producers:
                    continue
                appended = log.append_marker(transaction.producer_id, transaction.epoch, commit)
                if appended.error is not ErrorCode.NONE:
                    raise OSError(0, appended.message or appended.error.name)
                transaction.markers[partition] = appended.base_offset
            if commit and transaction.offsets:
                self._commit_offsets(transaction)
            before = transaction.state
            transaction.state = State.COMMITTED if commit else State.ABORTED
            pending, transaction.offsets = transaction.offsets, {}
            try:
                self._save(transaction)
            except OSError:
                transaction.state, transaction.offsets = before, pending
                raise
        except OSError as error:
            logger.error(
                "transaction %r: %s later (%s)", transaction.transactional_id, transaction.state, error.strerror
            )
            if self._retry is None:
                self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._carry_out_all)

    def _carry_out_all(self) -> None:
        self._retry = None
        for transaction in list(self._transactions.values()):
            if transaction.state in DECIDED:
                self._carry_out(transaction)

    def _commit_offsets(self, transaction: Transaction) -> None:
        by_group: dict[str, list[tuple[OffsetKey, int, int, str]]] = {}
        for (group, key), committed in transaction.offsets.items():
            by_group.setdefault(group, []).append((key, *committed))
        for group, offsets in by_group.items():
            self._offsets.commit(group, offsets)
        if self._syncs:
            self._offsets.flush()

    def expire(self) -> None:
        """Forget transactional ids that were not used for a long time."""
        before_ms = _now_ms() - self._config.transactional_id_expiration_ms
        idle = [
            transaction
            for transaction in self._transactions.values()
            if transaction.updated_ms < before_ms and (transaction.state is State.EMPTY or transaction.state in SETTLED)
        ]
        for transaction in idle:
            del self._transactions[transaction.transactional_id]
            self._by_producer.pop(transaction.producer_id, None)
        if idle:
            try:
                self.rewrite()
            except OSError as error:
                logger.error("transactions: expired ones are still in the journal (%s)", error.strerror)

    def rewrite(self) -> None:
        """Write everything anew, in the present format. Raises OSError."""
        self._journal.rewrite(self._entries())

    def flush(self) -> None:
        """Force every change so far to disk. Blocks; safe in a thread. Raises OSError."""
        self._journal.flush()

    def close(self) -> None:
        for transaction in self._transactions.values():
            transaction.stop_timer()
        if self._retry is not None:
            self._retry.cancel()
        self._journal.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
