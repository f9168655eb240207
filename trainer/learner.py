"""The learner: collects groups, trains a step, makes it durable, announces it, waits until it is served.

A step in order: collect, train, write the checkpoint (which holds the input offsets and the announcements), write
the weights, publish the manifest, publish the resources, wait for a server, compare its logprobs. Groups that hold
nothing to train are settled with the step, which collects others (``rounds``). Only the checkpoint decides what has
been trained. A crash before it repeats the step from the same input; a crash after it repeats the announcements,
under the same ids. So each step is trained once, whatever is killed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from agl_stream.consumers.record import Partition
from agl_stream.consumers.runner.heartbeat import Heartbeat, process_stats
from agl_stream.producers.event_producer import EventProducer
from agl_stream.producers.task_producer import TaskProducer
from agl_stream.schemas.clock import now_us
from agl_stream.settings import Settings
from agl_stream.trainer.advantage import grpo_advantages
from agl_stream.trainer.batch import Batch, BatchConfig, Row, build_batch
from agl_stream.trainer.checkpoint import CheckpointFolder, CheckpointMismatch, LearnerState
from agl_stream.trainer.config import LearnerConfig
from agl_stream.trainer.curriculum import Curriculum, read_tasks, validation_requests
from agl_stream.trainer.intake import Intake
from agl_stream.trainer.log_follower import LogFollower
from agl_stream.trainer.manifest import build_manifest
from agl_stream.trainer.progress import Stopwatch, add_to_totals, batch_metrics, shortened, validation_record
from agl_stream.trainer.publication import ServerWatch, publish_batch, publish_resources, resources_event
from agl_stream.trainer.rounds import gather
from agl_stream.trainer.served_check import compare, served_completion
from agl_stream.trainer.start import first_version, lock_learner
from agl_stream.trainer.waiting import WaitReport, describe_missing, describe_window
from agl_stream.trainer.weights import WeightsFolder
from agl_stream.trainer.window import ClosedGroup, GroupWindow, WindowConfig, group_key

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.25

# where a step stands; told to ``on_stage``, in this order
STAGES = (
    "started",
    "enqueued",
    "collected",
    "trained",
    "checkpointed",
    "weights_written",
    "batch_published",
    "resources_published",
    "acknowledged",
)


class Backend(Protocol):
    """What a learner needs of a training back end; ``VerlBackend`` is one."""

    def step(self, rows: Sequence[Row], *, version_in: int | None = None) -> dict[str, float]: ...

    def logprobs(self, rows: Sequence[Row]) -> Any: ...

    def weights(self) -> dict[str, Any]: ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...


class Stopped(Exception):
    """Somebody asked the learner to stop; nothing is half done."""


class Learner:
    """One learner of one model. ``run`` blocks until the steps are done or ``stop`` is set."""

    def __init__(
        self,
        settings: Settings,
        config: LearnerConfig,
        backend: Backend,
        *,
        stop: threading.Event | None = None,
        on_stage: Callable[[str, int], None] = lambda stage, step: None,
        on_step: Callable[[dict[str, Any]], None] = lambda record: None,
    ) -> None:
        """``on_stage(stage, step)`` is called as a step proceeds, ``on_step`` with the history record of each."""
        self.settings, self.config = settings, config
        self.stage = ("started", 0)
        self._backend = backend
        self._stop = stop or threading.Event()
        self._on_stage, self._on_step = on_stage, on_step
        self._home = settings.folder / "learners" / config.learner_id
        self._checkpoints = CheckpointFolder(self._home / "checkpoints", keep=config.keep_checkpoints)
        self._weights = WeightsFolder(settings.folder / "weights" / config.resources_id)
        self._limits = {
            "max_attempts": config.max_attempts,
            "retry_condition": ["failed", "timeout", "unresponsive"],
            "timeout_seconds": config.attempt_timeout_seconds,
            "unresponsive_seconds": config.attempt_unresponsive_seconds,
        }
        self._validation_tasks = read_tasks(config.validation_file) if config.validation_file else []
        self._curriculum = (
            Curriculum(
                config.run_id,
                read_tasks(config.tasks_file),
                config.groups_per_step,
                config.group_size,
                config.seed,
                self._limits,
            )
            if config.tasks_file
            else None
        )
        self._served_diff: float | None = None
        self._asked: list[str] = []
        self._started_at, self._started_at_us = time.monotonic(), now_us()

    def run(self) -> LearnerState:
        """Trains and returns the last state. Raises AglStreamError; a SIGTERM handler sets ``stop`` instead.

        A learner that is run again goes on from its newest checkpoint; one whose steps are done only repeats its
        last announcements and validation.
        """
        with ExitStack() as stack:
            stack.enter_context(lock_learner(self._home))
            self._producer = stack.enter_context(EventProducer(self.settings, name="trainer", linger_ms=1.0))
            self._producer.check()
            self._tasks = TaskProducer(self.settings, producer=self._producer)
            follow = partial(LogFollower, self.settings, producer=self._producer, name="trainer")
            self._watch = ServerWatch(
                stack.enter_context(follow(topics=["workers"], from_end=True, pass_over_lost=True)),
                self.config.resources_id,
            )
            state = self._restore()
            offsets = {Partition(topic, number): offset for topic, number, offset in state.offsets} if state else None
            own_tasks = self.config.tasks_file is not None
            triplets = stack.enter_context(
                follow(topics=["triplets"], start=offsets, from_end=own_tasks or self.config.from_latest)
            )
            window = GroupWindow.restore(state.window, self._window_config()) if state else None
            self._intake = Intake(
                triplets,
                window or GroupWindow(self._window_config()),
                run_id=self.config.run_id if own_tasks else None,
                resources_id=self.config.resources_id,
            )
            self.state = state or self._begin(follow)
            heartbeat = Heartbeat(self._producer, self._beat, self.settings.heartbeat_seconds)
            stack.callback(heartbeat.stop)
            heartbeat.start()
            try:
                self._announce(self.state)
                self._train()
            except Stopped:
                log.info("stopped after step %d", self.state.step)
            return self.state

    def _window_config(self) -> WindowConfig:
        return WindowConfig(
            group_size=self.config.group_size,
            min_siblings=self.config.min_siblings,
            deadline_seconds=self.config.group_deadline_seconds,
        )

    def _restore(self) -> LearnerState | None:
        found = self._checkpoints.newest()
        if found is None:
            return None
        state, model = found
        for name, value in self.config.fixed().items():
            if state.settings.get(name) != value:
                raise CheckpointMismatch(
                    f"learner {self.config.learner_id} has a checkpoint at step {state.step} made with {name} "
                    f"{state.settings.get(name)!r}, not {value!r}; keep the setting, or take another --learner-id"
                )
        self._backend.load(model)
        log.info("going on from step %d, version %d", state.step, state.version)
        return state

    def _begin(self, follow: Callable[..., LogFollower]) -> LearnerState:
        """Step 0: the base model becomes the first version, on disk before anything is asked for."""
        with follow(topics=["resources"], pass_over_lost=True) as reader:
            version, resources = first_version(
                [record.event for record in reader.read_to_end()], self.config, self.settings.gateway_url
            )
        state = LearnerState(
            learner_id=self.config.learner_id,
            run_id=self.config.run_id,
            step=0,
            version=version,
            offsets=self._intake.offsets(),
            window=self._intake.window.state(),
            resources=self._resources(0, version, resources),
            settings=self.config.fixed(),
        )
        self._checkpoints.write(state, self._backend.save)
        self._at("checkpointed", 0)
        return state

    def _resources(self, step: int, version: int, resources: str) -> dict[str, Any]:
        return resources_event(
            resources_id=self.config.resources_id,
            version=version,
            resources=resources,
            run_id=self.config.run_id,
            learner_id=self.config.learner_id,
            step=step,
            occurred_at_us=now_us(),
        )

    def _train(self) -> None:
        while self.config.steps is None or self.state.step < self.config.steps:
            self._validate_if_due(start=self.state.step == 0)
            self._step(self.state.step + 1)
        self._validate_if_due(end=True)

    def _step(self, step: int) -> None:
        started_at_us, watch = now_us(), Stopwatch()
        batch, groups = gather(partial(self._collect, step), self._judge, f"step {step}")
        watch.lap("collect")
        trained = self._backend.step(batch.rows, version_in=self.state.version)
        watch.lap("train")
        self._at("trained", step)
        metrics = batch_metrics(batch, groups, trained, watch, previous=self.state, served_diff=self._served_diff)
        self._warn_of_drift(step, metrics)
        offsets = self._intake.offsets()
        manifest = build_manifest(
            learner_id=self.config.learner_id,
            step=step,
            run_id=self.config.run_id,
            outcomes=batch.outcomes,
            rows=len(batch.rows),
            adapter=batch.adapter,
            resources_id=self.config.resources_id,
            version_in=self.state.version,
            version_out=self.state.version + 1,
            offsets={(topic, partition): offset for topic, partition, offset in offsets},
            previous_hash=self.state.manifest["manifest_hash"] if self.state.manifest else None,
            metrics=metrics,
            started_at_us=started_at_us,
            ended_at_us=now_us(),
        )
        record = {"step": step, "version": self.state.version + 1, **metrics, "outcomes": dict(batch.counts)}
        record["seconds"] = watch.laps  # goes on being filled
        totals_before = self.state.totals
        state = LearnerState(
            learner_id=self.config.learner_id,
            run_id=self.config.run_id,
            step=step,
            version=self.state.version + 1,
            offsets=offsets,
            window=self._intake.window.state(),
            resources=self._resources(step, self.state.version + 1, self.state.resources["resources"]),
            manifest=manifest,
            settings=self.config.fixed(),
            history=shortened([*self.state.history, record]),
            validation=shortened(self.state.validation),
            totals=add_to_totals(totals_before, record),
        )
        self._checkpoints.write(state, self._backend.save)
        self.state = state
        watch.lap("checkpoint")
        self._at("checkpointed", step)
        self._announce(state)
        watch.lap("publish")
        # with the laps since the checkpoint; should they be lost in a crash, so are only their seconds
        state.totals = add_to_totals(totals_before, record)
        record["cpu_seconds"] = time.process_time()
        self._on_step(record)

    def _warn_of_drift(self, step: int, metrics: dict[str, float]) -> None:
        if metrics.get("max_logprob_diff", 0.0) > self.config.logprob_limit:
            log.warning(
                "step %d: rollouts report logprobs up to %.2g away from the trainer's (limit %g)",
                step,
                metrics["max_logprob_diff"],
                self.config.logprob_limit,
            )

    def _collect(self, step: int, round_number: int) -> list[ClosedGroup]:
        """Groups for a step; those that it asked for when it has tasks of its own."""
        keys: list[str] | None = None
        if self._curriculum is not None:
            requests = self._curriculum.requests(
                step, self.config.resources_id, self.state.version, round_number=round_number
            )
            # after a crash later rounds are on the log, too: their groups must wait for their turn
            keys = list(dict.fromkeys(map(group_key, requests)))
            self._asked = self._tasks.enqueue_many(requests)
        self._at("enqueued", step)
        window = self._intake.window
        report = WaitReport(f"step {step}", self.config.report_seconds)
        while (groups := window.take(self.config.groups_per_step, keys)) is None:
            self._intake.poll(_POLL_SECONDS)
            window.close_due(now_us())
            report.tick(lambda: describe_window(window, self.config.groups_per_step, self._asked))
            if self._stop.is_set():
                raise Stopped
        self._at("collected", step)
        return groups

    def _judge(self, groups: list[ClosedGroup]) -> Batch:
        return build_batch(
            groups,
            self._intake.window.take_late(),
            partial(grpo_advantages, by_std=self.config.advantage_by_std),
            BatchConfig(
                self.config.max_prompt_tokens,
                self.config.max_response_tokens,
                self.config.max_staleness,
                self.config.min_siblings,
            ),
            version_in=self.state.version,
        )

    def _announce(self, state: LearnerState) -> None:
        """Weights, manifest, resources, server: everything after the checkpoint; may be repeated at any point."""
        ref = self._weights.write(state.version, self._backend.weights(), self.config.model_dir)
        self._at("weights_written", state.step)
        if state.manifest is not None:
            publish_batch(self._producer, state.manifest)
        self._at("batch_published", state.step)
        publish_resources(self._producer, {**state.resources, "weights": ref})
        self._at("resources_published", state.step)
        if self.config.need_server:
            if not self._watch.wait(
                state.version, self.config.ack_timeout_seconds, self._stop.is_set, self.config.report_seconds
            ):
                raise Stopped
            self._served_diff = self._compare_with_server(state.version)
        self._at("acknowledged", state.step)
        self._weights.prune(self.config.keep_versions, spare=self._watch.served() | {state.version})

    def _compare_with_server(self, version: int) -> float:
        row = served_completion(
            self.settings.upstream_url,
            model=self.config.served_name,
            prompt=self.config.check_prompt,
            version=version,
            api_key=self.settings.upstream_api_key,
            timeout_seconds=self.config.ack_timeout_seconds,
        )
        return compare(row, self._backend.logprobs, limit=self.config.logprob_limit, version=version)

    def _validate_if_due(self, *, start: bool = False, end: bool = False) -> None:
        step, every = self.state.step, self.config.validate_every
        if not self._validation_tasks or any(record["step"] == step for record in self.state.validation):
            return
        if not (start or end or (every and step % every == 0)):
            return
        requests = validation_requests(
            self.config.run_id,
            step,
            self._validation_tasks,
            self._limits,
            self.config.resources_id,
            self.state.version,
        )
        self._intake.expect_validation(request["rollout_id"] for request in requests)
        self._tasks.enqueue_many(requests)
        report = WaitReport(f"validation at step {step}", self.config.report_seconds)
        while missing := self._intake.awaited_validation():
            self._intake.poll(_POLL_SECONDS)
            report.tick(lambda missing=missing: describe_missing(missing, len(requests)))
            if self._stop.is_set():
                raise Stopped
        record = validation_record(step, self._intake.validation())
        self.state.validation.append(record)
        self._on_step({"validation": record})

    def _beat(self) -> dict[str, Any]:
        stage, step = self.stage
        stats = json.loads(process_stats(self._started_at)) | {"stage": stage, "step": step}
        return {
            "worker_id": f"trainer-{self.config.learner_id}",
            "worker_instance": self._producer.identity["instance"],
            "role": "trainer",
            "status": "busy",
            "started_at_us": self._started_at_us,
            "interval_seconds": self.settings.heartbeat_seconds,
            "resources_id": self.config.resources_id,
            "resources_version": self.state.version,
            "stats": json.dumps(stats),
        }

    def _at(self, stage: str, step: int) -> None:
        self.stage = (stage, step)
        self._on_stage(stage, step)
