"""Runs a demo from start to verdict."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agl_stream.demo.monitor import Monitor
from agl_stream.demo.plan import DemoPlan, prepare_files, runner_specs, serve_spec, trainer_spec
from agl_stream.demo.verdict import Figures, summary
from agl_stream.demo.view import Snapshot, View
from agl_stream.errors import AglStreamError
from agl_stream.local.data_folder import DataFolder
from agl_stream.local.engines import Engines
from agl_stream.local.system import LocalSystem, Ports
from agl_stream.settings import Settings
from agl_stream.supervise import RestartPolicy, Supervisor, free_ports

_LOOK_SECONDS = 0.25
_SETTLE_SECONDS = 30.0
_TRAINER = "trainer"

# In a demo somebody may well kill things to see what happens; five deaths a minute is then no sign of a fault.
_POLICY = RestartPolicy(max_deaths=10)


class Interrupted(AglStreamError):
    """The demo was stopped before its end."""

    exit_code = 130


class Phases:
    """Wall-clock seconds by phase, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.current = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        self.current = name
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


def run_demo(plan: DemoPlan, folder_path: Path, view: View, stop: threading.Event, engines: Engines) -> dict[str, Any]:
    """Start everything, train, stop everything; returns the summary (see `verdict.summary`).

    Raises ProcessFailed when a process cannot be kept alive, Interrupted when `stop` is set meanwhile.
    """
    started = time.monotonic()
    phases = Phases()
    with ExitStack() as stack:
        folder = stack.enter_context(DataFolder(folder_path))
        with phases.phase("preparing"):
            view.update(Snapshot("preparing the model and tasks", 0, plan.steps))
            engines.fetch(Settings.load(), view.note)
            files = prepare_files(plan, folder.path)
        supervisor = stack.enter_context(Supervisor(folder.log_dir, policy=_POLICY, notify=view.note))
        broker, registry, gateway, server, store = free_ports(5)
        settings = replace(
            Settings.load(), dir=str(folder.path), upstream_url=f"http://127.0.0.1:{server}/v1", namespace="agl"
        )
        system = LocalSystem(folder, supervisor, Ports(broker, registry, gateway, store), settings, engines)
        with phases.phase("starting"):
            view.update(Snapshot("starting", 0, plan.steps))
            others = [serve_spec(system, plan, files, server), *runner_specs(system, plan)]
            system.start(*others, trainer_spec(system, plan, files), cancelled=stop)
            _raise_if(stop)
            folder.publish(system.endpoints, system.settings())
            monitor = Monitor(system.settings(), plan.run_id, plan.steps)
            stack.callback(monitor.close)
        training_started = time.monotonic()
        _watch(supervisor, monitor, view, phases, stop, plan)
        training_seconds = time.monotonic() - training_started
        with phases.phase("settling"):
            account, versions = _settle(system.settings(), monitor, view, stop, plan)
        spans = monitor.spans()
        with phases.phase("stopping"):
            view.update(monitor.snapshot("stopping"))
            supervisor.stop()
        usage = supervisor.usage()
        figures = Figures(
            steps_wanted=plan.steps,
            account=account,
            spans=spans,
            resource_versions=versions,
            wall_seconds=time.monotonic() - started,
            training_seconds=training_seconds,
            phases_seconds=phases.seconds,
            cpu_seconds={name: used.cpu_seconds for name, used in usage.items()},
            max_rss_bytes={name: used.max_rss_bytes for name, used in usage.items()},
            restarts={name: count for name, count in supervisor.restarts().items() if count},
        )
        return summary(monitor.progress, figures)


def _watch(
    supervisor: Supervisor, monitor: Monitor, view: View, phases: Phases, stop: threading.Event, plan: DemoPlan
) -> None:
    """Show progress until the trainer has ended."""
    progress = monitor.progress
    while not supervisor.wait_completed(_TRAINER, 0):
        _raise_if(stop)
        if not progress.steps:
            name = "held-out prompts, before" if not progress.heldout else "training"
        else:
            name = "training" if len(progress.steps) < plan.steps else "held-out prompts, after"
        with phases.phase(name):
            monitor.look(_LOOK_SECONDS)
            monitor.ask()
        view.update(monitor.snapshot(name))


def _settle(
    settings: Settings, monitor: Monitor, view: View, stop: threading.Event, plan: DemoPlan
) -> tuple[dict[str, Any], int]:
    """Wait until monitor and state store have all that the log holds; returns the account and the number of
    versions published. After `_SETTLE_SECONDS` the account is taken as it is."""
    from agl_stream.streams.store import Condition, Query, open_store

    own_versions = Query(must=(Condition("resources_id", exact=plan.run_id),), limit=0)
    deadline = time.monotonic() + _SETTLE_SECONDS
    store = open_store(settings, read_only=True)
    try:
        while True:
            monitor.look(_LOOK_SECONDS)
            view.update(monitor.snapshot("waiting for the state store"))
            account = store.account(plan.run_id)
            complete = len(monitor.progress.steps) >= plan.steps and not account["in_flight"]
            if (complete and account["balanced"]) or stop.is_set() or time.monotonic() > deadline:
                return account, store.query_resources(own_versions).total
    finally:
        store.close()


def _raise_if(stop: threading.Event) -> None:
    if stop.is_set():
        raise Interrupted("stopped before the end")
