"""The sink wired to the log: one batch consumer over everything that the state store keeps."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka import OFFSET_BEGINNING

from agl_stream import connections
from agl_stream.consumers.batch_loop import BatchHandler, BatchLoop, Partition, Record
from agl_stream.consumers.log_questions import LogQuestions
from agl_stream.consumers.rejects import RejectLimits, Rejects
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.settings import Settings
from agl_stream.streams.materialise.activity import ActivityWatch
from agl_stream.streams.store import StateStore, open_store
from agl_stream.streams.store.waiting import Stopped, until_it_answers

TOPICS = ("spans", "rollouts", "triplets", "batches", "resources", "workers", "rejects")
_LOOK_SECONDS = 0.2

logger = logging.getLogger(__name__)

EndOffsets = Callable[[list[Partition]], Mapping[Partition, int]]


def run_sink(settings: Settings, stop: threading.Event, ready: Callable[[], None] | None = None) -> None:
    """Keep the state store in step with the log until ``stop`` is set; blocks. ``ready`` is called once, when
    partitions are assigned and applying begins.

    Any number of sinks may run; the group shares the partitions. Raises TooManyRejects, SettingError and
    FolderNotWritable; a broker or database that is away is waited for.
    """
    try:
        store = until_it_answers(lambda: open_store(settings, read_only=False), stop, "sink")
    except Stopped:
        return
    codec = Codec(connections.registry_client(settings))
    questions = LogQuestions(settings, "sink")
    try:
        with EventProducer(settings, name="sink", codec=codec) as producer:
            limits = RejectLimits(consecutive=settings.reject_limit_consecutive)
            rejects = Rejects(producer, rejected_by="sink", limits=limits)
            handler = SinkHandler(store, producer, questions.end_offsets)
            loop = BatchLoop(
                settings, group="sink", topics=TOPICS, handler=handler, codec=codec, rejects=rejects, max_records=4000
            )
            loop.run(stop, ready)
    finally:
        questions.close()
        store.close()


class SinkHandler(BatchHandler):
    """Applies batches to the store, and reports attempts that only their spans show to be alive."""

    def __init__(self, store: StateStore, producer: EventProducer, end_offsets: EndOffsets) -> None:
        self._store = store
        self._producer = producer
        self._end_offsets = end_offsets
        self._watch = ActivityWatch()
        self._next_look = 0.0

    def assigned(self, partitions: list[Partition]) -> Mapping[Partition, int]:
        """The store's own offsets win over the group's: they are of one transaction with the data. A store that
        knows nothing of a partition reads it from its beginning; so a deleted store is rebuilt."""
        applied = self._store.applied_offsets()
        ends = self._end_offsets(partitions) if partitions else {}
        starts: dict[Partition, int] = {}
        for partition in partitions:
            starts[partition] = applied.get(partition, OFFSET_BEGINNING)
            if starts[partition] > ends[partition]:
                logger.warning(
                    "%s partition %d ends at %d and the store had applied %d: the topic was made anew; reading it "
                    "from its beginning",
                    *(partition.topic, partition.number, ends[partition], starts[partition]),
                )
                self._store.restart(partition.topic, partition.number)
                starts[partition] = OFFSET_BEGINNING
        return starts

    def handle(self, records: list[Record]) -> None:
        self._store.apply(records)
        now = time.monotonic()
        for record in records:
            if record.topic == "spans":
                self._watch.on_span(record.event, now)
            elif record.topic == "rollouts":
                self._watch.on_rollout(record.event)
        self._look(now)

    def idle(self) -> None:
        self._look(time.monotonic())

    def _look(self, now: float) -> None:
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        signs = self._watch.due(now)
        if signs:
            rollouts = self._store.get_rollouts({sign.rollout_id for sign in signs})
            for event in self._watch.reports(signs, rollouts, now):
                # not waited for: it is a hint, and the span that gave it is in the store
                self._producer.send("attempts", event)
