"""The loop against a real broker: nothing is skipped, whatever happens to handler, group or broker."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agl_stream.consumers import client
from agl_stream.consumers.batch_loop import BatchHandler, BatchLoop, Partition, Record
from agl_stream.consumers.log_questions import LogQuestions
from agl_stream.consumers.rejects import RejectLimits, Rejects
from agl_stream.errors import AglStreamError, EngineUnreachable, TooManyRejects
from agl_stream.infra.embedded.testing import BrokerThread
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.ids import event_id
from agl_stream.schemas.registry import LocalRegistry
from agl_stream.settings import Settings

CODEC = Codec(LocalRegistry())
PARTITIONS = 4


@pytest.fixture
def settings(bootstrap_servers: str) -> Settings:
    made = Settings(
        register_schemas=True,
        bootstrap_servers=bootstrap_servers, namespace=f"t{uuid.uuid4().hex[:8]}", partitions=PARTITIONS, linger_ms=0,
        session_timeout_seconds=6.0,
    )  # fmt: skip
    make_topics(made, "spans", "rejects")
    return made


def make_topics(settings: Settings, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    for future in admin.create_topics(
        [NewTopic(settings.topic(name), settings.partitions, 1) for name in names]
    ).values():
        future.result(30)


@pytest.fixture
def producer(settings: Settings) -> Iterator[EventProducer]:
    with EventProducer(settings, name="test", codec=CODEC) as made:
        yield made


def send_spans(producer: EventProducer, count: int, start: int = 0) -> None:
    spans = [
        {"rollout_id": f"ro-{n % 37}", "attempt_id": "at-1", "span_id": str(n), "sequence_id": n, "name": "s",
         "started_at_us": 1}
        for n in range(start, start + count)
    ]  # fmt: skip
    producer.deliver("spans", [(None, span) for span in spans])


class Collector(BatchHandler):
    """Keeps what it sees; ``before`` runs first and may fail or take its time."""

    def __init__(self, before: Callable[[list[Record]], None] | None = None) -> None:
        self.records: list[Record] = []
        self.assignments: list[list[Partition]] = []
        self.revocations: list[tuple[list[Partition], bool]] = []
        self.starts: dict[Partition, int] = {}
        self.floors: dict[Partition, int] = {}
        self.idles = 0
        self.ends: list[tuple[Partition, int]] = []
        self._before = before

    def handle(self, records: list[Record]) -> Future[None] | None:
        if self._before is not None:
            self._before(records)
        self.records += records
        return None

    def assigned(self, partitions: list[Partition]) -> Mapping[Partition, int]:
        self.assignments.append(partitions)
        return {p: self.starts[p] for p in partitions if p in self.starts}

    def revoked(self, partitions: list[Partition], *, lost: bool) -> None:
        self.revocations.append((partitions, lost))

    def reached_end(self, ends: list[tuple[Partition, int]]) -> None:
        self.ends += ends

    def idle(self) -> None:
        self.idles += 1

    def commit_floors(self) -> Any:
        return self.floors.items()

    def seen(self) -> set[int]:
        return {int(record.event["span_id"]) for record in self.records}


class Running:
    """A loop in a thread, stopped at the end of a ``with``."""

    def __init__(
        self,
        settings: Settings,
        producer: EventProducer,
        handler: BatchHandler,
        limits: RejectLimits | None = None,
        **kwargs: Any,
    ) -> None:
        self.loop = BatchLoop(
            settings, group="g", topics=["spans"], handler=handler, codec=CODEC,
            rejects=Rejects(producer, rejected_by="g", limits=limits), **kwargs,
        )  # fmt: skip
        self.stop, self.ready = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.loop.run(self.stop, self.ready.set)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.join()

    def join(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.01)


def committed(settings: Settings) -> dict[int, int]:
    reader = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": settings.group("g")})
    asked = [TopicPartition(settings.topic("spans"), n) for n in range(PARTITIONS)]
    found = {p.partition: p.offset for p in reader.committed(asked, timeout=10) if p.offset >= 0}
    reader.close()
    return found


def ends(settings: Settings, topic: str = "spans") -> dict[int, int]:
    reader = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": "none"})
    wire = settings.topic(topic)
    found = {n: reader.get_watermark_offsets(TopicPartition(wire, n), 10)[1] for n in range(PARTITIONS)}
    reader.close()
    return {n: end for n, end in found.items() if end}


def read_rejects(settings: Settings) -> list[dict[str, Any]]:
    reader = Consumer(
        {"bootstrap.servers": settings.bootstrap_servers, "group.id": "r", "auto.offset.reset": "earliest"}
    )
    wanted = ends(settings, "rejects")
    reader.assign([TopicPartition(settings.topic("rejects"), n, 0) for n in wanted])
    found = []
    while len(found) < sum(wanted.values()):
        for message in reader.consume(100, 1.0):
            found.append(CODEC.decode(message.value())[1])
    reader.close()
    return found


def test_everything_is_handled_in_order_and_committed(settings: Settings, producer: EventProducer) -> None:
    send_spans(producer, 3000)
    handler = Collector()
    with Running(settings, producer, handler, max_records=250) as running:
        wait_until(lambda: len(handler.records) == 3000)
        wait_until(lambda: committed(settings) == ends(settings))
        assert running.ready.is_set()
        # only what came, and a loop without work lets its handler know
        wait_until(lambda: handler.idles >= 2)
    assert handler.seen() == set(range(3000)) and len(handler.records) == 3000
    for number in range(PARTITIONS):
        offsets = [r.offset for r in handler.records if r.partition == number]
        assert offsets == sorted(offsets)
    assert handler.assignments == [[Partition("spans", n) for n in range(PARTITIONS)]]
    assert handler.revocations == [(handler.assignments[0], False)]


def test_what_a_foreign_writer_left_out_is_derived(settings: Settings, producer: EventProducer) -> None:
    event = {"rollout_id": "ro", "attempt_id": "a", "span_id": "1", "sequence_id": 1, "name": "s", "started_at_us": 1}
    foreign = Producer({"bootstrap.servers": settings.bootstrap_servers})
    sent_ms = int(time.time() * 1000) - 60_000  # recent, or retention takes the record before it is read
    foreign.produce(settings.topic("spans"), CODEC.encode("SpanRecorded", event), partition=2, timestamp=sent_ms)
    assert foreign.flush(10) == 0
    handler = Collector()
    with Running(settings, producer, handler):
        wait_until(lambda: bool(handler.records))
    record = handler.records[0]
    assert (record.key, record.partition, record.timestamp_ms) == (None, 2, sent_ms)
    assert record.event["event_id"] == event_id("spans", 2, 0)
    assert record.event["occurred_at_us"] == sent_ms * 1000


def test_poison_becomes_rejects_and_the_rest_goes_on(settings: Settings, producer: EventProducer) -> None:
    send_spans(producer, 50)
    raw = Producer({"bootstrap.servers": settings.bootstrap_servers})
    good = CODEC.encode("SpanRecorded", {
        "rollout_id": "r", "attempt_id": "a", "span_id": "1", "sequence_id": 1, "name": "s", "started_at_us": 1,
    })  # fmt: skip
    reject = {"source_topic": "spans", "reason_code": "x", "detail": "d", "rejected_by": "t"}
    poison = {
        "not_framed": [b"{}", b"", None], "unknown_schema": [b"\0\0\0\xff\xff" + good[5:]],
        "undecodable": [good[:-5], good + b"tail"], "wrong_event": [CODEC.encode("RecordRejected", reject)],
    }  # fmt: skip
    for values in poison.values():
        for value in values:
            raw.produce(settings.topic("spans"), value, key=b"poison", partition=1)
    assert raw.flush(10) == 0
    send_spans(producer, 50, start=50)
    handler = Collector()
    with Running(settings, producer, handler):
        wait_until(lambda: committed(settings) == ends(settings))
    assert handler.seen() == set(range(100))
    rejects = read_rejects(settings)
    found = sorted((r["reason_code"], r["source_topic"], r["source_partition"], r["source_key"]) for r in rejects)
    assert found == sorted((reason, "spans", 1, b"poison") for reason, values in poison.items() for _ in values)
    assert all(r["rejected_by"] == "g" and r["event_id"] for r in rejects)
    payloads = {r["payload"] for r in rejects if r["reason_code"] == "undecodable"}
    assert payloads == set(poison["undecodable"])


def test_a_flood_of_poison_stops_the_loop_without_a_commit(settings: Settings, producer: EventProducer) -> None:
    raw = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for _ in range(30):
        raw.produce(settings.topic("spans"), b"junk", partition=3)
    raw.flush(10)
    running = Running(settings, producer, Collector(), limits=RejectLimits(consecutive=20))
    running.thread.start()
    running.join()
    assert isinstance(running.error, TooManyRejects)
    assert f"spans partition 3 were rejected, the last at offset {19} as not_framed" in str(running.error)
    assert committed(settings) == {}


def test_a_crash_of_the_handler_skips_nothing(settings: Settings, producer: EventProducer) -> None:
    send_spans(producer, 1000)
    handled: set[int] = set()

    def crash(records: list[Record]) -> None:
        if len(handled) > 400:
            raise AglStreamError("the store is broken")
        handled.update(int(record.event["span_id"]) for record in records)

    running = Running(settings, producer, Collector(crash), max_records=100, commit_interval_seconds=0)
    running.thread.start()
    running.join()
    assert isinstance(running.error, AglStreamError) and 400 < len(handled) < 1000
    assert 0 < sum(committed(settings).values()) <= len(handled)
    second = Collector()
    with Running(settings, producer, second):
        wait_until(lambda: committed(settings) == ends(settings))
    assert handled | second.seen() == set(range(1000))


def test_an_engine_that_is_away_is_tried_again_with_the_same_records(
    settings: Settings, producer: EventProducer
) -> None:
    send_spans(producer, 100)
    tries: list[list[int]] = []

    def away(records: list[Record]) -> None:
        tries.append([record.offset for record in records])
        if len(tries) < 3:
            raise EngineUnreachable("the store does not answer")

    handler = Collector(away)
    with Running(settings, producer, handler):
        wait_until(lambda: committed(settings) == ends(settings))
    assert tries[0] == tries[1] == tries[2]
    assert len(handler.records) == 100


def test_stopping_while_an_engine_is_away_commits_nothing(settings: Settings, producer: EventProducer) -> None:
    send_spans(producer, 10)
    tried = threading.Event()

    def away(records: list[Record]) -> None:
        tried.set()
        raise EngineUnreachable("the store does not answer")

    with Running(settings, producer, Collector(away)) as running:
        assert tried.wait(30)
    assert running.error is None
    assert committed(settings) == {}


class Futures(Collector):
    """Finishes batches when told, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[list[Record], Future[None]]] = []

    def handle(self, records: list[Record]) -> Future[None] | None:
        self.records += records
        future: Future[None] = Future()
        self.open.append((records, future))
        return future


def test_a_slow_batch_holds_back_the_commit_of_faster_ones(settings: Settings, producer: EventProducer) -> None:
    handler = Futures()
    with Running(settings, producer, handler, max_records=10, max_in_flight=5, commit_interval_seconds=0):
        send_spans(producer, 200)
        wait_until(lambda: len(handler.open) == 5)
        slow = handler.open[0][0]
        for _, future in handler.open[1:5]:
            future.set_result(None)
        wait_until(lambda: len(handler.open) == 9)
        time.sleep(0.3)
        floor = {p: min(r.offset for r in slow if r.partition == p) for p in {r.partition for r in slow}}
        assert all(committed(settings).get(p, 0) <= offset for p, offset in floor.items())
        handler.open[0][1].set_result(None)

        def finish_all() -> bool:
            for _, future in handler.open:
                if not future.done():
                    future.set_result(None)
            return committed(settings) == ends(settings)

        wait_until(finish_all)
    assert handler.seen() == set(range(200))


def test_floors_bound_the_commit(settings: Settings, producer: EventProducer) -> None:
    handler = Collector()
    handler.floors = {Partition("spans", 0): 3}
    send_spans(producer, 400)
    with Running(settings, producer, handler):
        wait_until(lambda: committed(settings) == ends(settings) | {0: 3})
        handler.floors = {}
        wait_until(lambda: committed(settings) == ends(settings))


def test_the_handlers_own_offsets_win(settings: Settings, producer: EventProducer) -> None:
    send_spans(producer, 400)
    with Running(settings, producer, Collector()):
        wait_until(lambda: committed(settings) == ends(settings))
    # a store that lost its tail, and one that is ahead of the group
    again = Collector()
    again.starts = {Partition("spans", 0): 5, Partition("spans", 1): ends(settings)[1] - 2}
    with Running(settings, producer, again):
        wait_until(lambda: len(again.records) == ends(settings)[0] - 5 + 2)
    assert min(r.offset for r in again.records if r.partition == 0) == 5


def test_the_end_of_a_partition_is_told_beyond_markers(settings: Settings, producer: EventProducer) -> None:
    writer = Producer({"bootstrap.servers": settings.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    writer.init_transactions(10)
    writer.begin_transaction()
    event = {"rollout_id": "ro", "attempt_id": "a", "span_id": "1", "sequence_id": 1, "name": "s", "started_at_us": 1}
    writer.produce(settings.topic("spans"), CODEC.encode("SpanRecorded", event), partition=0)
    writer.commit_transaction(10)
    handler = Collector()
    with Running(settings, producer, handler, partition_eof=True):
        wait_until(lambda: (Partition("spans", 0), 2) in handler.ends)
        assert [r.offset for r in handler.records] == [0]
        questions = LogQuestions(settings, "g")
        assert questions.end_offsets([Partition("spans", 0), Partition("spans", 1)]) == {
            Partition("spans", 0): 2, Partition("spans", 1): 0,
        }  # fmt: skip
        questions.close()


def test_a_handler_may_ask_about_the_log_in_the_middle_of_a_rebalance(
    settings: Settings, producer: EventProducer
) -> None:
    send_spans(producer, 100)
    questions = LogQuestions(settings, "g")
    answers: list[Any] = []

    class Asking(Collector):
        def assigned(self, partitions: list[Partition]) -> Mapping[Partition, int]:
            answers.append((questions.end_offsets(partitions), questions.committed_offsets(partitions)))
            answers.append(questions.partition_count("spans"))
            return super().assigned(partitions)

    with Running(settings, producer, Asking()):
        wait_until(lambda: committed(settings) == ends(settings))
    whole = {Partition("spans", n): ends(settings).get(n, 0) for n in range(PARTITIONS)}
    assert answers == [(whole, {}), PARTITIONS]
    assert questions.committed_offsets(whole) == {p: end for p, end in whole.items() if end}
    with pytest.raises(EngineUnreachable, match="topics apply"):
        questions.partition_count("rollouts")
    questions.close()


def test_members_that_come_and_go_lose_nothing(settings: Settings, producer: EventProducer) -> None:
    one, two = Collector(), Collector()
    with Running(settings, producer, one, max_records=50):
        send_spans(producer, 500)
        wait_until(lambda: len(one.records) > 100)
        with Running(settings, producer, two, max_records=50) as second:
            assert second.ready.wait(30)
            wait_until(lambda: bool(two.assignments and two.assignments[-1]))
            send_spans(producer, 500, start=500)
            wait_until(lambda: len(one.seen() | two.seen()) == 1000)
        wait_until(lambda: len(one.assignments) >= 3 and len(one.assignments[-1]) == PARTITIONS)
        send_spans(producer, 100, start=1000)
        wait_until(lambda: len(one.seen() | two.seen()) == 1100)
        wait_until(lambda: committed(settings) == ends(settings))
    # handed over with a commit: nothing was done by both
    both = [(r.partition, r.offset) for r in one.records + two.records]
    assert len(both) == len(set(both)) == 1100


def test_a_handler_slower_than_the_poll_interval_keeps_its_partitions(
    settings: Settings, producer: EventProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_POLL_INTERVAL_MS", 2_100)
    send_spans(producer, 20)
    handler = Collector(lambda records: time.sleep(3.5))
    with Running(replace(settings, session_timeout_seconds=2.0), producer, handler):
        wait_until(lambda: committed(settings) == ends(settings))
    assert len(handler.records) == 20
    assert len(handler.assignments) == 1


def test_work_that_outlasts_the_budget_is_handed_over_unfinished(settings: Settings, producer: EventProducer) -> None:
    send_spans(producer, 200)
    begun, release = threading.Event(), threading.Event()

    def stuck(records: list[Record]) -> None:
        begun.set()
        assert release.wait(60)

    first = Running(settings, producer, Collector(stuck), drain_seconds=0.5)
    with first:
        assert begun.wait(30)
        with Running(settings, producer, second := Collector()):
            wait_until(lambda: bool(second.assignments and second.assignments[-1]))
            first.stop.set()
            # leaving, too, it may not commit what it never finished
            wait_until(lambda: second.seen() == set(range(200)))
            wait_until(lambda: committed(settings) == ends(settings))
            release.set()
            first.join()
            assert committed(settings) == ends(settings)


def test_partitions_lost_while_paused_come_back_awake(tmp_path: Path) -> None:
    """The broker dies while the handler is slow, so the loop has paused; the client remembers that over a rebalance."""
    begun, release = threading.Event(), threading.Event()

    def slow_at_first(records: list[Record]) -> None:
        begun.set()
        assert release.wait(60)

    with BrokerThread(tmp_path) as broker:
        port = int(broker.bootstrap_servers.rsplit(":", 1)[1])
        settings = Settings(
            register_schemas=True,
            bootstrap_servers=broker.bootstrap_servers,
            namespace="paused",
            partitions=PARTITIONS,
            linger_ms=0,
        )
        make_topics(settings, "spans", "rejects")
        producer = EventProducer(settings, name="test", codec=CODEC)
        send_spans(producer, 50)
        running = Running(settings, producer, collector := Collector(slow_at_first))
        running.__enter__()
        assert begun.wait(30)
        wait_until(lambda: running.loop._paused)
    with BrokerThread(tmp_path, port=port):
        wait_until(lambda: not running.loop._assigned)
        release.set()
        send_spans(producer, 50, start=50)
        wait_until(lambda: collector.seen() == set(range(100)))
        running.__exit__(None, None, None)
        producer.close()
