"""Runs the lifecycle: one process of the group, until it is stopped or fails.

What it promises: every input record is folded at least once, in the order of its partition, and its offset is
committed only after the states and events that follow from it are acknowledged by the log. A process that dies, or
loses partitions, leaves nothing behind but records that are read again. An engine that goes away is waited for,
however long, with a warning at each try: another process would find it no sooner. A crash inside Faust and a
standstill with work waiting, both of which a new process may mend, end ``run_lifecycle`` with an error, for a
supervisor to start it anew.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from agl_stream import connections
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.settings import Settings
from agl_stream.streams.dispatch import RoundRobin
from agl_stream.streams.group_offsets import GroupOffsets
from agl_stream.streams.instance import stable_name
from agl_stream.streams.lifecycle.ended import EndedRollouts
from agl_stream.streams.lifecycle.faust_app import build_app, changelog_topic, prepare_topics
from agl_stream.streams.lifecycle.processor import LifecycleProcessor
from agl_stream.streams.lifecycle.resource_reader import ResourceReader
from agl_stream.streams.lifecycle.table import open_table
from agl_stream.streams.lifecycle.worker import LifecycleWorker
from agl_stream.streams.store import open_store
from agl_stream.streams.store.waiting import Stopped, until_it_answers

_INPUTS = {
    "RolloutRequested": {},
    "ControlRequested": {"rollout_id": "", "action": "cancel"},
    "AttemptStatusChanged": {"rollout_id": "", "attempt_id": "", "attempt_number": 1, "status": "running"},
}
_OUTPUTS = ("RolloutStateChanged", "AttemptDispatched", "RecordRejected")


def run_lifecycle(settings: Settings, stop: threading.Event, ready: Callable[[], None] | None = None) -> None:
    """Run until ``stop`` is set; ``ready`` is called once the table is there and records are being read.

    Blocks. Raises EngineUnreachable when broker, registry or topics are missing at the start, and whatever ended it
    before it was stopped.
    """
    with ExitStack() as stack, suppress(Stopped):
        partitions = prepare_topics(settings)
        folder = settings.folder / "lifecycle"
        instance = settings.lifecycle_instance or stack.enter_context(stable_name("lifecycle", folder))
        app, inputs = build_app(settings, instance=instance, partitions=partitions, folder=folder)
        codec = Codec(connections.registry_client(settings))
        _warm_up(codec)
        producer = EventProducer(settings, name="lifecycle", codec=codec, linger_ms=0.0)
        stack.callback(producer.close)
        resources = ResourceReader(settings, codec)
        stack.callback(resources.close)
        resources.view()
        store = until_it_answers(lambda: open_store(settings, read_only=True), stop, "lifecycle")
        stack.callback(store.close)
        offsets = GroupOffsets(settings, settings.group("lifecycle"))
        stack.callback(offsets.close)
        table = open_table(settings, changelog_topic(settings), folder / instance)
        stack.callback(table.close)
        executor = ThreadPoolExecutor(1, thread_name_prefix="lifecycle-fold")
        stack.callback(executor.shutdown, wait=True)
        processor = LifecycleProcessor(
            settings,
            table=table,
            changelog_topic=changelog_topic(settings),
            partitions=partitions,
            producer=producer,
            codec=codec,
            # not always the same first partition, so that restarts favour none
            dispatcher=RoundRobin(partitions, start=time.time_ns() % partitions),
            ended=EndedRollouts(store),
            resources=resources,
        )
        worker = LifecycleWorker(settings, app, inputs, executor, processor, table, offsets)
        asyncio.run(worker.run(stop, ready or (lambda: None)))


def _warm_up(codec: Codec) -> None:
    """Ask the registry for every schema in use now, rather than while the first rollouts wait."""
    for event_type, example in _INPUTS.items():
        codec.decode(codec.encode(event_type, example))
    for event_type in _OUTPUTS:
        codec.encoder(event_type)
