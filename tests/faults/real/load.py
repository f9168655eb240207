"""The whole system under load: our processes below a supervisor, groups of rollouts asked for all the time.

A test breaks something while ``flow`` is on and then calls ``settle``: it returns when every rollout that was asked
for has been trained and no group lags, or fails and says what is missing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from agl_stream.cli.topics import apply as apply_topics
from agl_stream.errors import EngineUnreachable
from agl_stream.infra.servers.process import ServerProcess
from agl_stream.producers.task_producer import TaskProducer
from agl_stream.schemas.registry import RegistryClient
from agl_stream.settings import ENV_PREFIX, Settings
from agl_stream.supervise import ProcessSpec, RestartPolicy, Supervisor, free_ports
from agl_stream.trainer.manifest import verify_chain
from tests.faults.real.far_host import FarHost
from tests.faults.real.learner import GROUP_SIZE, LEARNER
from tests.faults.real.upstream import Upstream
from tests.faults.real.watch import Watch

HERE = Path(__file__).parent
AGENT = f"{HERE / 'agent.py'}:scripted"
GROUPS_PER_SECOND = float(os.environ.get("AGL_TEST_GROUPS_PER_SECOND", "1"))
SETTLE_SECONDS = float(os.environ.get("AGL_TEST_SETTLE_SECONDS", "90"))

QUICK = {
    "session_timeout_seconds": 6.0,
    "heartbeat_seconds": 1.0,
    "worker_lost_seconds": 12.0,
    "claim_lease_seconds": 8.0,
    "partitions": 4,
    "linger_ms": 1.0,
    "runner_slots": 16,
}
"""Limits that let a test of some seconds see what takes minutes with the defaults."""


@dataclass
class Report:
    """What a fault cost: seconds without an ended rollout, and without a trained step."""

    fault: str
    rollouts: int
    without_rollout_seconds: float
    without_step_seconds: float
    restarts: dict[str, int]


REPORTS: list[Report] = []


class Load:
    """Our processes, and a registry of ours, against the engines of ``settings``. One of two runners, runner-2, has a
    host of its own: ``far``."""

    def __init__(self, settings: Settings, folder: Path, model_dir: Path, *, prepare_store: bool = False) -> None:
        self._stack = ExitStack()
        self._requested: dict[str, str] = {}
        self._number = 0
        self._restarts_seen: dict[str, int] = {}
        gateway, registry = free_ports(2)
        self.settings = replace(
            settings,
            dir=str(folder),
            registry_url=f"http://127.0.0.1:{registry}",
            gateway_url=f"http://127.0.0.1:{gateway}",
            store_url=settings.store_url or f"sqlite:///{folder}/state.db",
        )
        self._model_dir, self._gateway_port, self._registry_port = model_dir, gateway, registry
        self._prepare_store = prepare_store

    # start and end

    def __enter__(self) -> Load:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        upstream = self._stack.enter_context(Upstream())
        self.settings = replace(self.settings, upstream_url=upstream.url)
        folder = self.settings.folder
        self.registry = ServerProcess(
            "registry",
            self._command("registry", "--port", str(self._registry_port)),
            folder,
            env=self.environment(),
            ready=lambda process: process.printed_since_start("registry ready"),
        )
        self.registry.start()
        self._stack.callback(self.registry.kill)
        self.registry.wait_ready()
        apply_topics(self.settings)
        RegistryClient(self.settings.registry_url, namespace=self.settings.namespace).register_all()
        if self._prepare_store:
            self.agl("store", "apply", timeout_seconds=180)
        self.supervisor = self._stack.enter_context(
            Supervisor(folder / "logs", policy=RestartPolicy(max_deaths=12), notify=print)
        )
        engine_ports = [int(server.rpartition(":")[2]) for server in self.settings.bootstrap_servers.split(",")]
        self.far = self._stack.enter_context(FarHost(folder, [*engine_ports, self._registry_port, self._gateway_port]))
        self.supervisor.start(
            self._spec("lifecycle", "streams", "--only", "lifecycle,watchdog"),
            self._spec("sink", "streams", "--only", "sink"),
            self._spec("joiner", "streams", "--only", "joiner"),
            self._spec("gateway", "gateway", "--port", str(self._gateway_port)),
            self._spec("runner-1", "runner", AGENT, "--name", "runner-1"),
            self._far_runner_spec(),
            self._learner_spec(),
        )
        self.watch = Watch(self.settings)
        self._stack.callback(self.watch.close)

    def environment(self) -> dict[str, str]:
        """Every setting of ours as a variable."""
        return {
            ENV_PREFIX + spec.name.upper(): str(value)
            for spec in fields(self.settings)
            if (value := getattr(self.settings, spec.name)) != spec.default
        }

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "agl_stream.cli.main", *arguments, "-v"]

    def _spec(self, name: str, *arguments: str) -> ProcessSpec:
        return ProcessSpec(
            name,
            self._command(*arguments),
            env=self.environment(),
            ready_timeout_seconds=120,
            stop_timeout_seconds=40,
            waits_with=EngineUnreachable.exit_code,
        )

    def _far_runner_spec(self) -> ProcessSpec:
        near = self._spec("runner-2", "runner", AGENT, "--name", "runner-2")
        return replace(near, argv=[*self.far.prefix, *near.argv], env={**near.env, **self.far.env})

    def _learner_spec(self) -> ProcessSpec:
        command = [sys.executable, str(HERE / "learner.py"), str(self._model_dir)]
        return ProcessSpec("learner", command, self.environment(), ready_timeout_seconds=120, stop_timeout_seconds=40)

    # at work

    @contextmanager
    def flow(self, *, seconds: float = 0.2) -> Iterator[None]:
        """Groups of rollouts are asked for, at a steady pace, until the end of the block.

        ``seconds``: how long an agent works. A request that the log does not take in time ends the test.
        """
        stop = threading.Event()
        failures: list[BaseException] = []

        def ask() -> None:
            due = time.monotonic()
            try:
                with TaskProducer(self.settings) as tasks:
                    while not stop.is_set():
                        self._request_group(tasks, seconds)
                        due = max(due + 1 / GROUPS_PER_SECOND, time.monotonic() - 1)
                        stop.wait(max(0.0, due - time.monotonic()))
            except BaseException as error:
                failures.append(error)

        asking = threading.Thread(target=ask, name="load", daemon=True)
        asking.start()
        try:
            yield
        finally:
            stop.set()
            asking.join(self.settings.delivery_timeout_seconds + 20)
        assert not asking.is_alive(), "asking for rollouts hangs"
        if failures:
            raise failures[0]

    def _request_group(self, tasks: TaskProducer, seconds: float) -> None:
        self._number += 1
        name = f"g{self._number:05d}"
        asked = [
            {
                "input": {"name": f"{name}-{n}", "reward": float(n % 2), "seconds": seconds},
                "rollout_id": f"ro-{name}-{n}",
                "group_id": name,
                "group_size": GROUP_SIZE,
                "mode": "train",
                "run_id": LEARNER,
                "config": {
                    "max_attempts": 5,
                    "retry_condition": ["failed", "timeout", "unresponsive"],
                    "timeout_seconds": 60.0,
                },
            }
            for n in range(GROUP_SIZE)
        ]
        # noted before the log has them: what was asked for and its answer lost counts as asked for
        self._requested |= dict.fromkeys((task["rollout_id"] for task in asked), name)
        tasks.enqueue_many(asked)

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> None:
        """Wait for a condition; fails with what the system says of itself."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.supervisor.check()
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}\n{self.state()}"
            time.sleep(0.05)

    def pid(self, name: str) -> int:
        """Process id of one of ours."""
        return self.supervisor.pids()[name]

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """The process gets no CPU, keeps its connections and answers nothing, until the end of the block."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def replaced(self, name: str, number: signal.Signals, seconds: float = 150.0) -> None:
        """End the process by a signal and wait until its successor says that it is ready."""
        pid = self.pid(name)
        os.kill(pid, number)
        self.until(
            lambda: self.supervisor.pids().get(name, pid) != pid and self.supervisor.ready_line(name),
            seconds,
            f"{name} is ready again",
        )

    def progress(self, rollouts: int, seconds: float = 60.0) -> None:
        """Wait until so many more rollouts have ended."""
        goal = self.watch.finished() + rollouts
        self.until(lambda: self.watch.finished() >= goal, seconds, f"{rollouts} more rollouts end")

    # afterwards

    def settle(self, fault: str, since: float, *, restarted: tuple[str, ...] = ()) -> Report:
        """Everything asked for so far is trained, once; lag is zero; only the ``restarted`` processes have died."""
        wanted = set(self._requested)
        self.until(lambda: wanted <= self.watch.settled(), SETTLE_SECONDS, "every rollout is settled")
        pauses = self.watch.worst_pause(since)
        restarts = self._new_restarts()
        self._check_ledger(wanted)
        self.until(lambda: not self._lag(), SETTLE_SECONDS, "no group lags")
        assert set(restarts) == set(restarted), f"died: {restarts}\n{self.state()}"
        report = Report(fault, len(wanted), *pauses, restarts)
        REPORTS.append(report)
        return report

    def tried_again(self) -> dict[str, list[str]]:
        """Rollouts that took more than one attempt, and how each attempt ended."""
        with self.watch._lock:
            return {rollout_id: ends for rollout_id, ends in self.watch.attempts.items() if len(ends) > 1}

    def _check_ledger(self, wanted: set[str]) -> None:
        watch = self.watch
        assert watch.conflicts == []
        assert watch.trained_twice() == []
        assert watch.settled() == wanted, "trained what nobody asked for"
        assert watch.reasons() == {"trained": len(wanted)}, f"{watch.reasons()} {list(watch.failures.items())[:5]}"
        assert set(watch.ended) == wanted
        with watch._lock:
            manifests = [watch.manifests[step] for step in sorted(watch.manifests)]
        assert verify_chain(manifests) == len(manifests)
        # what the state store says, by the command that users ask
        self.until(lambda: self._account()["trained"] == len(wanted), 30, "the state store has it all")
        account = self._account()
        assert account["balanced"] and account["requested"] == len(wanted) and account["in_flight"] == 0, account

    def _account(self) -> dict[str, Any]:
        return json.loads(self.agl("status", "--account", "--output", "json"))["account"]

    def _lag(self) -> dict[str, int]:
        lag = json.loads(self.agl("status", "--output", "json"))["lag"]
        return {group: records for group, records in lag.items() if records}

    def _new_restarts(self) -> dict[str, int]:
        now = self.supervisor.restarts()
        new = {name: count - self._restarts_seen.get(name, 0) for name, count in now.items()}
        self._restarts_seen = now
        return {name: count for name, count in new.items() if count}

    def agl(self, *arguments: str, timeout_seconds: float = 60.0) -> str:
        """Output of ``agl-stream ARGUMENTS``; fails with its last words."""
        done = subprocess.run(
            self._command(*arguments)[:-1],
            env=os.environ | self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        assert done.returncode == 0, f"agl-stream {' '.join(arguments)}: {done.returncode} {done.stderr[-2000:]}"
        return done.stdout

    def state(self) -> str:
        """What a person would look at: status, what is missing, the ends of the logs."""
        lines: list[str] = []
        try:
            lines.append(self.agl("status", "--account"))
        except (AssertionError, subprocess.TimeoutExpired) as error:
            lines.append(str(error))
        missing = sorted(set(self._requested) - self.watch.settled())
        not_ended = [rollout_id for rollout_id in missing if rollout_id not in self.watch.ended]
        lines.append(
            f"{len(missing)} of {len(self._requested)} not settled, {len(not_ended)} not ended: {missing[:12]}"
        )
        lines.append(f"restarts {self.supervisor.restarts()}")
        for log in sorted((self.settings.folder / "logs").glob("*.log")):
            lines.append(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}")
        return "\n".join(lines)
