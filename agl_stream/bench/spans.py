"""`agl-stream bench spans`: from a producer process over broker, span sink and joiner to triplets in the state store.

This process is the producer. It asks for rollouts, plays the runner that ends them, and between the two sends spans
of a realistic size. Two phases: as quick as it goes (throughput), then one rollout at a time (latency).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from agl_stream.bench.machine import machine, versions
from agl_stream.bench.rollouts import quantile
from agl_stream.errors import AglStreamError
from agl_stream.local.data_folder import DataFolder
from agl_stream.local.system import LocalSystem, Ports
from agl_stream.local.workplace import workplace
from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.task_producer import TaskProducer
from agl_stream.schemas.clock import HybridClock, now_us
from agl_stream.schemas.codec import Codec
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import attempt_id, new_id, new_rollout_id, new_span_id, new_trace_id
from agl_stream.schemas.tokens import pack_floats, pack_ids
from agl_stream.settings import Settings
from agl_stream.streams.store import open_store
from agl_stream.streams.store.port import Condition, Query, StateReader
from agl_stream.supervise import ProcessUsage, Supervisor, free_ports

_SPANS_PER_ROLLOUT = 50
_ROLLOUTS_PER_FLUSH = 20
_LATENCY_SAMPLES = 100
_STALL_SECONDS = 60.0

Progress = Callable[[int, int], None]


def run(
    settings: Settings | None = None,
    *,
    spans: int = 100_000,
    size: int = 1100,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Measure and return one JSON-ready object: spans_per_second, latency_ms {p50, p99}, stages_us, and so on.

    ``size``: bytes of an encoded span. ``settings``: a system that runs already (on this machine, since the state
    store is read); None starts one in a temporary folder and removes it. Raises AglStreamError when nothing moves
    for a minute.
    """
    rollouts = max(spans // _SPANS_PER_ROLLOUT, 1)
    with ExitStack() as stack:
        folder = stack.enter_context(DataFolder(stack.enter_context(workplace(None))))
        supervisor = stack.enter_context(Supervisor(folder.log_dir))
        if settings is None:
            system = LocalSystem(folder, supervisor, Ports(*free_ports(3)), Settings.load())
            system.start()
            settings = system.settings()
        tasks = stack.enter_context(TaskProducer(settings))
        producer = stack.enter_context(EventProducer(settings, name="bench"))
        store = open_store(settings, read_only=True)
        stack.callback(store.close)
        bench = _Bench(tasks, producer, store, size)
        bench.load(4, lambda done, total: None)
        before, own_before = supervisor.usage(), time.process_time()
        seconds = bench.load(rollouts, progress)
        own_cpu = time.process_time() - own_before
        after = supervisor.usage()
        latencies = sorted(bench.latency_ms() for _ in range(_LATENCY_SAMPLES))
    sent = rollouts * _SPANS_PER_ROLLOUT
    cpu = {
        name: round((usage.cpu_seconds - before.get(name, ProcessUsage()).cpu_seconds) / sent * 1e6, 1)
        for name, usage in after.items()
    }
    return {
        "spans_per_second": round(sent / seconds, 1),
        "latency_ms": {"p50": quantile(latencies, 0.50), "p99": quantile(latencies, 0.99)},
        "stages_us": {"encode": _encode_us(size), "produce": round(own_cpu / sent * 1e6, 1), **cpu},
        "sizes": {
            "spans": sent,
            "span_bytes": _span_bytes(size),
            "spans_per_rollout": _SPANS_PER_ROLLOUT,
            "partitions": settings.partitions,
            "latency_samples": _LATENCY_SAMPLES,
        },
        "seconds": round(seconds, 2),
        "machine": machine(),
        "versions": versions(),
    }


class _Bench:
    """The producer side, and the look at what has arrived."""

    def __init__(self, tasks: TaskProducer, producer: EventProducer, store: StateReader, size: int) -> None:
        self._tasks = tasks
        self._producer = producer
        self._store = store
        self._size = size
        self._clock = HybridClock()

    def load(self, rollouts: int, progress: Progress) -> float:
        """Seconds from the first span sent to the last triplets readable."""
        run_id = "bench-" + new_id()[:12]
        ids = [self._tasks.send({"input": {}, "run_id": run_id, "mode": "test"}) for _ in range(rollouts)]
        self._tasks.flush()
        self._await(lambda: sum(self._store.count_rollouts_by_status(run_id=run_id).values()), rollouts)
        joined_before = self._store.counts()["triplets"]
        started = time.monotonic()
        for chunk in _chunks(ids, _ROLLOUTS_PER_FLUSH):
            self._send(chunk)
        self._await(lambda: self._store.counts()["triplets"] - joined_before, rollouts, progress)
        seconds = time.monotonic() - started
        self._check(run_id, ids)
        return seconds

    def latency_ms(self) -> float:
        """From the acknowledgement of a rollout's last span to its readable triplets."""
        run_id = "bench-" + new_id()[:12]
        rollout_id = self._tasks.send({"input": {}, "run_id": run_id, "mode": "test"})
        self._tasks.flush()
        self._await(lambda: int(self._store.get_rollout(rollout_id) is not None), 1)
        self._send_spans(rollout_id)
        self._producer.flush()
        last_span = time.monotonic()
        self._end([rollout_id])
        self._await(lambda: int(self._store.get_triplets(rollout_id) is not None), 1, pause_seconds=0.002)
        return (time.monotonic() - last_span) * 1000

    def _send(self, rollout_ids: list[str]) -> None:
        for rollout_id in rollout_ids:
            self._send_spans(rollout_id)
        self._producer.flush()
        self._end(rollout_ids)

    def _send_spans(self, rollout_id: str) -> None:
        like = make_span(rollout_id, attempt_id(rollout_id, 1), self._size)
        for _ in range(_SPANS_PER_ROLLOUT):
            self._producer.send("spans", next_span(like, self._clock.tick()), key=rollout_id)

    def _end(self, rollout_ids: list[str]) -> None:
        for rollout_id in rollout_ids:
            ended = {
                "rollout_id": rollout_id,
                "attempt_id": attempt_id(rollout_id, 1),
                "attempt_number": 1,
                "status": "succeeded",
                "reward": 1.0,
            }
            self._producer.send("attempts", ended, key=rollout_id)

    def _await(
        self,
        count: Callable[[], int],
        wanted: int,
        progress: Progress = lambda done, total: None,
        pause_seconds: float = 0.05,
    ) -> None:
        last, moved_at = -1, time.monotonic()
        while (now := count()) < wanted:
            progress(now, wanted)
            if now != last:
                last, moved_at = now, time.monotonic()
            elif time.monotonic() - moved_at > _STALL_SECONDS:
                raise AglStreamError(
                    f"nothing has moved for {_STALL_SECONDS:g} s: {now:,} of {wanted:,}; see `agl-stream status`"
                )
            time.sleep(pause_seconds)
        progress(wanted, wanted)

    def _check(self, run_id: str, ids: list[str]) -> None:
        """A rate of spans that got lost would mean nothing: every triplet of a sample must be there."""
        page = self._store.query_rollouts(Query(must=(Condition("run_id", exact=run_id),), limit=1))
        if page.total != len(ids):
            raise AglStreamError(f"{page.total} of {len(ids)} rollouts are in the store")
        for rollout_id in random.sample(ids, min(len(ids), 50)):
            joined = self._store.get_triplets(rollout_id)
            if joined is None or len(joined["triplets"]) != _SPANS_PER_ROLLOUT:
                found = "none" if joined is None else f"{len(joined['triplets'])} ({joined['reason_code']})"
                raise AglStreamError(f"rollout {rollout_id} has {found} of {_SPANS_PER_ROLLOUT} triplets")


def make_span(rollout_id: str, attempt: str, size: int) -> Event:
    """A model call of about ``size`` encoded bytes, with token ids, logprobs and bodies; without what each span has
    of its own (``next_span``)."""
    filler = "x" * max(size - 640, 0)
    return {
        "rollout_id": rollout_id,
        "attempt_id": attempt,
        "trace_id": new_trace_id(),
        "name": "openai.chat.completion",
        "kind": "llm_call",
        "status": "ok",
        "model": "policy",
        "prompt_token_ids": pack_ids(range(40)),
        "response_token_ids": pack_ids(range(16)),
        "response_logprobs": pack_floats([-0.5] * 16),
        "finish_reason": "stop",
        "request": '{"messages":[{"role":"user","content":"' + filler + '"}]}',
    }


def next_span(like: Event, sequence_id: int) -> Event:
    """A further span of the attempt that ``like`` is of."""
    now = now_us()
    return {
        **like,
        "span_id": new_span_id(),
        "sequence_id": sequence_id,
        "started_at_us": now - 1000,
        "ended_at_us": now,
        "attributes": '{"gen_ai.response.id":"' + new_id() + '"}',
    }


def _chunks(items: list[str], length: int) -> Iterator[list[str]]:
    for start in range(0, len(items), length):
        yield items[start : start + length]


def _span_bytes(size: int) -> int:
    """Length of one record, with what the producer adds to each event."""
    event = next_span(make_span(new_rollout_id(), attempt_id("", 1), size), HybridClock().tick())
    common = {"event_id": new_id(), "occurred_at_us": now_us(), "producer": {"name": "bench", "instance": "0" * 12}}
    return len(Codec().encode("SpanRecorded", {**event, **common}))


def _encode_us(size: int) -> float:
    """Wall time to build and encode one span, in this process, with nothing else to do."""
    encode, count = Codec().encoder("SpanRecorded"), 2000
    like = make_span(new_rollout_id(), attempt_id("", 1), size)
    started = time.perf_counter()
    for number in range(count):
        encode(next_span(like, number))
    return round((time.perf_counter() - started) / count * 1e6, 1)
