"""The joiner wired to the log."""

from __future__ import annotations

import threading
from collections.abc import Callable

from agl_stream import connections
from agl_stream.consumers.batch_loop import BatchLoop
from agl_stream.consumers.log_questions import LogQuestions
from agl_stream.consumers.rejects import RejectLimits, Rejects
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.codec import Codec
from agl_stream.settings import Settings
from agl_stream.streams.joiner.adapter_llm_calls import LlmCalls
from agl_stream.streams.joiner.core import Bounds
from agl_stream.streams.joiner.handler import JoinerHandler
from agl_stream.streams.joiner.writer import Writer
from agl_stream.streams.store import open_store
from agl_stream.streams.store.waiting import Stopped, until_it_answers


def run_joiner(settings: Settings, stop: threading.Event, ready: Callable[[], None] | None = None) -> None:
    """Join the spans of every closed rollout into TripletsJoined until ``stop`` is set; blocks. ``ready`` is called
    once, when partitions are assigned.

    Any number of joiners may run; the group shares the partitions. After a restart, and for late spans, the state
    store is read, so a sink must run somewhere. Raises TooManyRejects and SettingError; a broker or store that is
    away is waited for.
    """
    codec = Codec(connections.registry_client(settings))
    try:
        store = until_it_answers(lambda: open_store(settings, read_only=True), stop, "joiner")
    except Stopped:
        return
    questions = LogQuestions(settings, "joiner")
    try:
        with EventProducer(settings, name="joiner", codec=codec, linger_ms=1.0) as producer:
            limits = RejectLimits(consecutive=settings.reject_limit_consecutive)
            rejects = Rejects(producer, rejected_by="joiner", limits=limits)
            bounds = Bounds(record_bytes=settings.max_record_bytes)
            handler = JoinerHandler(store, questions, Writer(producer), LlmCalls(), bounds=bounds)
            loop = BatchLoop(
                settings,
                group="joiner",
                topics=("spans", "rollouts"),
                handler=handler,
                codec=codec,
                rejects=rejects,
                poll_seconds=0.05,
                partition_eof=True,
            )
            loop.run(stop, ready)
    finally:
        questions.close()
        store.close()
