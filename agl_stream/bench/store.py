"""`agl-stream bench store`: how quick one sink process takes spans off the log into the state store of the settings.

The spans are on the log before the sink starts, so that nothing but the sink and the database is measured (and the
broker's reading, which is little). Spans of many open attempts lie between one another, as agents write them. On
Cassandra the spans go to a keyspace of their own, which is dropped afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from agl_stream import connections
from agl_stream.bench.machine import machine, versions
from agl_stream.bench.spans import make_span, next_span
from agl_stream.cli.topics import apply as apply_topics
from agl_stream.errors import AglStreamError
from agl_stream.local.data_folder import DataFolder
from agl_stream.local.system import LocalSystem, Ports
from agl_stream.local.workplace import workplace
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.clock import HybridClock
from agl_stream.schemas.ids import attempt_id, new_id, new_rollout_id
from agl_stream.settings import ENV_PREFIX, Settings
from agl_stream.streams.store import StateReader, open_store
from agl_stream.streams.store.address import is_cassandra
from agl_stream.streams.store.layout import apply_store
from agl_stream.supervise import Supervisor, free_ports

SPANS_PER_ROLLOUT = 50
_STALL_SECONDS = 60.0

Progress = Callable[[int, int], None]


def run(
    *,
    spans: int = 100_000,
    size: int = 1100,
    open_rollouts: int = 100,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Measure and return one JSON-ready object: spans_per_second, sink_cpu_us (of one span) and so on.

    ``size``: bytes of an encoded span; ``open_rollouts``: how many record spans at the same time. Raises AglStreamError
    when nothing moves for a minute, or when spans are missing in the end.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(DataFolder(stack.enter_context(workplace(None))))
        given = stack.enter_context(_own_store(replace(Settings.load(), dir=str(folder.path))))
        supervisor = stack.enter_context(Supervisor(folder.log_dir))
        ports = Ports(*free_ports(3))
        system = LocalSystem(folder, supervisor, ports, given)
        supervisor.start(
            system.spec("broker", "broker", "--port", str(ports.broker)),
            system.spec("registry", "registry", "--port", str(ports.registry)),
        )
        settings = replace(system.settings(), store_url=given.store_url)
        apply_topics(settings)
        connections.registry_client(settings).register_all()
        complete = _produce(settings, spans, size, open_rollouts)
        store = open_store(settings)
        stack.callback(store.close)
        sink_only = {ENV_PREFIX + "STORE_URL": given.store_url}
        supervisor.spawn(system.spec("sink", "streams", "--only", "sink", env=sink_only))
        applied_before, began = _await(store, 1, spans, progress)
        cpu_before = supervisor.usage()["sink"].cpu_seconds
        _, ended = _await(store, spans, spans, progress)
        cpu = supervisor.usage()["sink"].cpu_seconds - cpu_before
        _check(store, complete)
    measured = spans - applied_before
    return {
        "spans_per_second": round(measured / (ended - began), 1),
        "sink_cpu_us": round(cpu / measured * 1e6, 1),
        "sizes": {
            "spans": spans,
            "measured": measured,
            "span_bytes": size,
            "spans_per_rollout": SPANS_PER_ROLLOUT,
            "open_rollouts": open_rollouts,
            "partitions": settings.partitions,
        },
        "store": "cassandra" if is_cassandra(settings) else "sqlite",
        "seconds": round(ended - began, 2),
        "machine": machine(),
        "versions": versions(),
    }


@contextmanager
def _own_store(settings: Settings) -> Iterator[Settings]:
    """The settings with a store that is empty and nobody else's."""
    if not is_cassandra(settings):
        yield replace(settings, store_url="")
        return
    from agl_stream.streams.store.cassandra.address import parse_address
    from agl_stream.streams.store.cassandra.layout import drop_keyspace

    points, _, rest = settings.store_url.removeprefix("cassandra://").partition("/")
    _, question, options = rest.partition("?")
    own = replace(settings, store_url=f"cassandra://{points}/bench_{new_id()[:12]}{question}{options}")
    apply_store(own)
    try:
        yield own
    finally:
        drop_keyspace(own, parse_address(own.store_url, copies=own.replication_factor))


def _produce(settings: Settings, spans: int, size: int, open_rollouts: int) -> list[str]:
    """Spans of so many rollouts in turn; the ids of those that have all of theirs."""
    clock = HybridClock()
    complete: list[str] = []
    with EventProducer(settings, name="bench") as producer:
        turn: list[tuple[str, dict[str, Any], int]] = []
        sent = 0
        while sent < spans:
            while len(turn) < open_rollouts:
                rollout_id = new_rollout_id()
                turn.append((rollout_id, make_span(rollout_id, attempt_id(rollout_id, 1), size), SPANS_PER_ROLLOUT))
            rest: list[tuple[str, dict[str, Any], int]] = []
            for rollout_id, like, left in turn:
                if sent < spans:
                    producer.send("spans", next_span(like, clock.tick()), key=rollout_id)
                    sent += 1
                    left -= 1
                    if not left:
                        complete.append(rollout_id)
                if left:
                    rest.append((rollout_id, like, left))
            turn = rest
        producer.flush()
    return complete


def _await(store: StateReader, wanted: int, total: int, progress: Progress) -> tuple[int, float]:
    """How many spans are applied once at least ``wanted`` are, and when that was."""
    last, moved_at = -1, time.monotonic()
    while True:
        applied = sum(offset for (topic, _), offset in store.applied_offsets().items() if topic == "spans")
        now = time.monotonic()
        progress(applied, total)
        if applied >= wanted:
            return applied, now
        if applied != last:
            last, moved_at = applied, now
        elif now - moved_at > _STALL_SECONDS:
            raise AglStreamError(f"nothing has moved for {_STALL_SECONDS:g} s: {applied:,} of {total:,} spans")
        time.sleep(0.05)


def _check(store: StateReader, complete: list[str]) -> None:
    """A rate of spans that got lost would mean nothing."""
    for rollout_id in complete[:: max(len(complete) // 50, 1)]:
        found = len(store.get_spans(rollout_id))
        if found != SPANS_PER_ROLLOUT:
            raise AglStreamError(f"rollout {rollout_id} has {found} of {SPANS_PER_ROLLOUT} spans in the store")
