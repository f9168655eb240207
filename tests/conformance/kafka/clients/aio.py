"""aiokafka behind the interface of the conformance cases: its coroutines run in one loop of a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import aiokafka
from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from tests.conformance.kafka.clients.aio_admin import LACKS, AioAdmin
from tests.conformance.kafka.clients.aio_loop import event_loop, refused, run
from tests.conformance.kafka.clients.port import (
    END,
    SECONDS,
    START,
    ConsumerSettings,
    Partition,
    ProducerSettings,
    Record,
    Refused,
)

_ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class AioProducer:
    def __init__(self, bootstrap_servers: str, settings: ProducerSettings) -> None:
        config: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "acks": "all" if settings.acks == -1 else settings.acks,
            "compression_type": None if settings.compression == "none" else settings.compression,
            "linger_ms": settings.linger_ms,
            "max_request_size": settings.max_request_bytes,
            "enable_idempotence": settings.idempotent or settings.transactional_id is not None,
            "request_timeout_ms": 15_000,
        }
        if settings.batch_bytes is not None:
            config["max_batch_size"] = settings.batch_bytes
        if settings.transactional_id is not None:
            config["transactional_id"] = settings.transactional_id
            config["transaction_timeout_ms"] = settings.transaction_timeout_ms
        self._sent: asyncio.Queue[Any] = asyncio.Queue()
        """Records to be sent, None at the end."""
        self._outcomes: list[Any] = []

        async def start() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(**config)
            try:
                await producer.start()
            except BaseException:
                await producer.stop()
                raise
            return producer

        self._producer = run(start())
        self._pumping = asyncio.run_coroutine_threadsafe(self._pump(), event_loop())

    async def _pump(self) -> None:
        """Hand records to the client one after another, in the order in which they were sent."""
        while (record := await self._sent.get()) is not None:
            try:
                self._outcomes.append(await self._producer.send(**record))
            except KafkaError as error:
                self._outcomes.append(refused(error))
            self._sent.task_done()

    def send(
        self,
        partition: Partition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        record = {
            "topic": partition.topic,
            "value": value,
            "key": key,
            "partition": partition.number if partition.number >= 0 else None,
            "headers": list(headers) or None,
            "timestamp_ms": timestamp_ms,
        }
        event_loop().call_soon_threadsafe(self._sent.put_nowait, record)

    def flush(self) -> list[Any]:
        async def outcome(sent: Any) -> int | Refused:
            if isinstance(sent, Refused):
                return sent
            try:
                written = await sent
            except KafkaError as error:
                return refused(error)
            return -1 if written is None else written.offset

        async def outcomes() -> list[int | Refused]:
            await self._sent.join()
            sent, self._outcomes = self._outcomes, []
            return [await outcome(one) for one in sent]

        return run(outcomes())

    def begin(self) -> None:
        run(self._producer.begin_transaction())

    def commit(self) -> None:
        run(self._producer.commit_transaction())

    def abort(self) -> None:
        run(self._producer.abort_transaction())

    def send_offsets(self, offsets: Mapping[Partition, int], consumer: Any) -> None:
        rows = {TopicPartition(*partition): offset for partition, offset in offsets.items()}
        run(self._producer.send_offsets_to_transaction(rows, consumer.group))

    def close(self) -> None:
        event_loop().call_soon_threadsafe(self._sent.put_nowait, None)
        self._pumping.result(SECONDS)
        with contextlib.suppress(Refused, TimeoutError):
            run(self._producer.stop(), 3)


class _Listener(ConsumerRebalanceListener):
    def __init__(self, consumer: AioConsumer) -> None:
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._consumer.rebalances += 1


class AioConsumer:
    def __init__(self, bootstrap_servers: str, settings: ConsumerSettings) -> None:
        self.group = settings.group
        self.rebalances = 0

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap_servers,
                group_id=settings.group,
                group_instance_id=settings.instance_id,
                auto_offset_reset=settings.reset,
                isolation_level="read_committed" if settings.committed_only else "read_uncommitted",
                fetch_min_bytes=settings.min_bytes,
                fetch_max_wait_ms=settings.max_wait_ms,
                fetch_max_bytes=settings.max_bytes,
                max_partition_fetch_bytes=settings.partition_max_bytes,
                session_timeout_ms=settings.session_timeout_ms,
                heartbeat_interval_ms=settings.heartbeat_ms,
                max_poll_interval_ms=settings.max_poll_interval_ms,
                partition_assignment_strategy=[_ASSIGNORS[name] for name in settings.strategies],
                enable_auto_commit=settings.auto_commit,
                metadata_max_age_ms=500,
            )
            await consumer.start()
            return consumer

        self._consumer = run(start())

    def subscribe(self, *topics: str) -> None:
        async def subscribe() -> None:
            self._consumer.subscribe(list(topics), listener=_Listener(self))

        run(subscribe())

    def assign(self, positions: Mapping[Partition, int]) -> None:
        async def assign() -> None:
            self._consumer.assign([TopicPartition(*partition) for partition in positions])
            for partition, offset in positions.items():
                await self._seek(partition, offset)

        run(assign())

    async def _seek(self, partition: Partition, offset: int) -> None:
        place = TopicPartition(*partition)
        if offset == START:
            await self._consumer.seek_to_beginning(place)
        elif offset == END:
            await self._consumer.seek_to_end(place)
        else:
            self._consumer.seek(place, offset)

    def poll(self, seconds: float = 0.05) -> list[Record]:
        taken = run(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [_record(message) for messages in taken.values() for message in messages]

    def assignment(self) -> set[Partition]:
        return {Partition(found.topic, found.partition) for found in self._consumer.assignment()}

    def position(self, partition: Partition) -> int:
        return run(self._consumer.position(TopicPartition(*partition)))

    def seek(self, partition: Partition, offset: int) -> None:
        run(self._seek(partition, offset))

    def pause(self, partition: Partition) -> None:
        async def pause() -> None:
            self._consumer.pause(TopicPartition(*partition))

        run(pause())

    def resume(self, partition: Partition) -> None:
        async def resume() -> None:
            self._consumer.resume(TopicPartition(*partition))

        run(resume())

    def commit(self, offsets: Mapping[Partition, tuple[int, str]] | None = None) -> None:
        rows = None
        if offsets is not None:
            rows = {TopicPartition(*partition): OffsetAndMetadata(*given) for partition, given in offsets.items()}
        run(self._consumer.commit(rows))

    def committed(self, partition: Partition) -> int | None:
        return run(self._consumer.committed(TopicPartition(*partition)))

    def ends(self, partition: Partition) -> tuple[int, int]:
        place = TopicPartition(*partition)

        async def ends() -> tuple[int, int]:
            low = await self._consumer.beginning_offsets([place])
            high = await self._consumer.end_offsets([place])
            return low[place], high[place]

        return run(ends())

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int | None:
        place = TopicPartition(*partition)
        found = run(self._consumer.offsets_for_times({place: timestamp_ms}))[place]
        return None if found is None else found.offset

    def close(self) -> None:
        run(self._consumer.stop())


def _record(message: Any) -> Record:
    return Record(
        Partition(message.topic, message.partition),
        message.offset,
        message.key,
        message.value,
        list(message.headers),
        message.timestamp,
    )


class AiokafkaClient:
    name = "aiokafka"
    lacks = LACKS

    def producer(self, bootstrap_servers: str, settings: ProducerSettings) -> AioProducer:
        return AioProducer(bootstrap_servers, settings)

    def consumer(self, bootstrap_servers: str, settings: ConsumerSettings) -> AioConsumer:
        return AioConsumer(bootstrap_servers, settings)

    def admin(self, bootstrap_servers: str) -> AioAdmin:
        return AioAdmin(bootstrap_servers)
