"""`agl-stream bench rollouts`: from the request of a rollout to its end in the state store, with nothing in between.

The agents return a reward at once, so what is measured is the system: request, lifecycle, dispatch, claim, reports,
state store. Two phases: all rollouts at once (throughput), then a few a second (latency without a queue).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from agl_stream.bench.machine import machine, versions
from agl_stream.errors import AglStreamError
from agl_stream.local.data_folder import DataFolder
from agl_stream.local.system import LocalSystem, Ports
from agl_stream.local.workplace import workplace
from agl_stream.producers.task_producer import TaskProducer
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import new_id
from agl_stream.settings import Settings, as_environment
from agl_stream.streams.store import open_store
from agl_stream.streams.store.port import Condition, Query, StateReader
from agl_stream.supervise import ProcessSpec, ProcessUsage, Supervisor, free_ports

AGENT = "agl_stream.bench.rollouts:instant_agent"
_ENVIRONMENT = ("dir", "bootstrap_servers", "registry_url", "gateway_url", "namespace", "partitions", "store_url")
_WARM_UP = 40
_PACED = 200
_PACED_PER_SECOND = 40.0
_STALL_SECONDS = 60.0
_LOOK_SECONDS = 0.1

Progress = Callable[[int, int], None]


async def instant_agent(task: dict[str, int]) -> float:
    """Returns a reward at once."""
    return float(task["number"] % 2)


def run(
    settings: Settings | None = None,
    *,
    rollouts: int = 3000,
    runners: int = 4,
    slots: int = 8,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Measure and return one JSON-ready object: rollouts_per_second, latency_ms {p50, p99}, stages_us, and so on.

    ``settings``: a system that runs already; None starts one in a temporary folder and removes it. Runners are
    started in both cases. Blocks for some ten seconds. Raises ProcessFailed, or AglStreamError when a rollout fails
    or nothing moves for a minute.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(DataFolder(stack.enter_context(workplace(None))))
        supervisor = stack.enter_context(Supervisor(folder.log_dir))
        if settings is None:
            system = LocalSystem(folder, supervisor, Ports(*free_ports(3)), Settings.load())
            system.start()
            settings = system.settings()
        supervisor.start(*(_runner(settings, number, slots) for number in range(runners)))
        tasks = stack.enter_context(TaskProducer(settings))
        store = open_store(settings, read_only=True)
        stack.callback(store.close)
        _measure(tasks, store, _WARM_UP, progress=lambda done, total: None)
        before = supervisor.usage()
        seconds, loaded = _measure(tasks, store, rollouts, progress=progress)
        cpu_us = _cpu_us(before, supervisor.usage(), rollouts)
        _, paced = _measure(tasks, store, _PACED, per_second=_PACED_PER_SECOND, progress=lambda done, total: None)
    return {
        "rollouts_per_second": round(rollouts / seconds, 1),
        "latency_ms": _latency_ms(paced),
        "latency_loaded_ms": _latency_ms(loaded),
        "stages_us": _stages_us(paced),
        "cpu_us_per_rollout": cpu_us,
        "sizes": {
            "rollouts": rollouts,
            "rollouts_for_latency": _PACED,
            "latency_rate_per_second": _PACED_PER_SECOND,
            "runners": runners,
            "slots": slots,
            "partitions": settings.partitions,
        },
        "machine": machine(),
        "versions": versions(),
    }


def _runner(settings: Settings, number: int, slots: int) -> ProcessSpec:
    return ProcessSpec(
        f"runner-{number}",
        [sys.executable, "-m", "agl_stream.cli.main", "runner", AGENT, "--slots", str(slots)],
        env=as_environment({name: getattr(settings, name) for name in _ENVIRONMENT}),
        stop_timeout_seconds=10.0,
    )


def _measure(
    tasks: TaskProducer, store: StateReader, count: int, *, progress: Progress, per_second: float | None = None
) -> tuple[float, list[Event]]:
    """Seconds until ``count`` rollouts have ended in the store, and their states."""
    run_id = "bench-" + new_id()[:12]
    started = time.monotonic()
    for number in range(count):
        tasks.send({"input": {"number": number}, "run_id": run_id, "mode": "test"})
        if per_second is not None:
            time.sleep(max(0.0, started + (number + 1) / per_second - time.monotonic()))
    tasks.flush()
    _wait_until_ended(store, run_id, count, progress)
    seconds = time.monotonic() - started
    return seconds, list(store.query_rollouts(Query(must=(Condition("run_id", exact=run_id),))))


def _wait_until_ended(store: StateReader, run_id: str, count: int, progress: Progress) -> None:
    last, moved_at = {}, time.monotonic()
    while True:
        now = store.count_rollouts_by_status(run_id=run_id)
        if failed := now.get("failed", 0) + now.get("cancelled", 0):
            raise AglStreamError(
                f"{failed} of {count} rollouts failed, so there is nothing to measure; {_why(store, run_id)}"
            )
        progress(now.get("succeeded", 0), count)
        if now.get("succeeded", 0) >= count:
            return
        if now != last:
            last, moved_at = now, time.monotonic()
        elif time.monotonic() - moved_at > _STALL_SECONDS:
            raise AglStreamError(f"nothing has moved for {_STALL_SECONDS:g} s: {now or 'no rollout was accepted'}")
        time.sleep(_LOOK_SECONDS)


def _why(store: StateReader, run_id: str) -> str:
    query = Query(must=(Condition("run_id", exact=run_id), Condition("status", exact="failed")), limit=1)
    for state in store.query_rollouts(query):
        detail = state["attempts"][-1]["detail"] if state["attempts"] else None
        return f"{state['rollout_id']}: {state['reason_code']}, {detail}"
    return "see `agl-stream status`"


def _latency_ms(states: list[Event]) -> dict[str, float]:
    """Request to end, as the events themselves date them."""
    took = sorted((state["ended_at_us"] - state["requested_at_us"]) / 1000 for state in states)
    return {"p50": quantile(took, 0.50), "p99": quantile(took, 0.99)}


def _stages_us(states: list[Event]) -> dict[str, float]:
    """Median wall time of each stage of a rollout's life."""
    attempts = [(state, state["attempts"][-1]) for state in states]
    return {
        "request_to_claim": _median(a["started_at_us"] - state["requested_at_us"] for state, a in attempts),
        "claim_to_end": _median(a["ended_at_us"] - a["started_at_us"] for _, a in attempts),
    }


def _cpu_us(before: Mapping[str, ProcessUsage], after: Mapping[str, ProcessUsage], rollouts: int) -> dict[str, float]:
    """CPU time of each process for one rollout; the runners together."""
    spent: dict[str, float] = {}
    for name, usage in after.items():
        seconds = usage.cpu_seconds - before.get(name, ProcessUsage()).cpu_seconds
        role = "runners" if name.startswith("runner-") else name
        spent[role] = spent.get(role, 0.0) + seconds
    return {role: round(seconds / rollouts * 1e6) for role, seconds in spent.items()}


def _median(values: Any) -> float:
    return round(statistics.median(values))


def quantile(ordered: list[float], share: float) -> float:
    """The value below which ``share`` of an ascending list lies."""
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
