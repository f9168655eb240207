"""The learner on a real log: each step trained once, whatever is killed; waiting is loud; errors say what to do."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trainer_feeder import Feeder, scripted
from trainer_makers import PlainBackend, joined, make_topics, random_rows

from agl_stream.errors import AglStreamError, FolderNotWritable
from agl_stream.producers.event_producer import EventProducer
from agl_stream.settings import Settings
from agl_stream.trainer import rounds
from agl_stream.trainer.checkpoint import CheckpointMismatch
from agl_stream.trainer.config import LearnerConfig
from agl_stream.trainer.learner import STAGES, Learner
from agl_stream.trainer.manifest import verify_chain
from agl_stream.trainer.publication import NotServed
from agl_stream.trainer.start import CheckpointLost, lock_learner
from agl_stream.trainer.weights import load_tensors, verify

Event = dict[str, Any]
Read = Callable[..., list[Event]]


@pytest.fixture
def tasks_file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"input": f"task {n}"}) + "\n" for n in range(7)))
    return path


@pytest.fixture
def config(model_dir: Path, tasks_file: Path) -> LearnerConfig:
    return LearnerConfig(
        model_dir=model_dir,
        steps=3,
        groups_per_step=3,
        group_size=4,
        tasks_file=tasks_file,
        need_server=False,
        report_seconds=0.3,
        ack_timeout_seconds=20.0,
    )


def check_account(read: Read, config: LearnerConfig, feeder: Feeder, steps: int) -> list[Event]:
    """Every rollout asked for is settled exactly once, the chain holds, versions rise by one."""
    manifests = sorted({m["step"]: m for m in read("batches")}.values(), key=lambda m: m["step"])
    assert verify_chain(read("batches")) == steps
    settled = [outcome["rollout_id"] for manifest in manifests for outcome in manifest["rollouts"]]
    asked = {r["rollout_id"] for r in read("rollout-requests") if r["mode"] == "train"}
    assert sorted(settled) == sorted(asked)
    assert len(asked) == steps * config.groups_per_step * config.group_size
    for manifest in manifests:
        for outcome in manifest["rollouts"]:
            assert outcome["content_hash"] == feeder.played[outcome["rollout_id"]]["content_hash"]
    versions = {event["version"]: event for event in read("resources")}
    assert sorted(versions) == list(range(1, steps + 2))
    assert [manifest["version_out"] for manifest in manifests] == list(range(2, steps + 2))
    return manifests


class Host:
    """A learner_host process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("learner_host.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline())["ready"]

    def run(self, settings: Settings, config: LearnerConfig, kill: tuple[str, int] | None = None) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {
            "settings": dataclasses.asdict(settings),
            "config": dataclasses.asdict(config),
            "kill": kill,
        }
        self._process.stdin.write(json.dumps(order, default=str) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the host and whatever it runs."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


@pytest.mark.faults
def test_killed_at_every_stage_each_step_is_trained_once_and_the_result_is_the_same(
    host: Host, settings: Settings, config: LearnerConfig, read: Read, tmp_path: Path
) -> None:
    """SIGKILL at each named point, one after another; then the same run undisturbed: same weights in the end."""
    points = [("checkpointed", 0), ("resources_published", 0)]
    points += [(stage, 1) for stage in STAGES[1:5]] + [(stage, 2) for stage in STAGES[3:]]
    with Feeder(settings, scripted) as feeder:
        for point in points:
            ended = host.run(settings, config, kill=point)
            assert ended["status"] == -9, (point, ended)
        ended = host.run(settings, config)
        assert ended["status"] == 0, ended
        assert ended["summary"]["steps"] == 3
        assert ended["summary"]["rollouts"]["trained"] == 36
        again = host.run(settings, config)
        assert again["summary"]["steps"] == 3, "a finished learner only repeats its announcements"
        manifests = check_account(read, config, feeder, steps=3)
    disturbed = newest_weights(read("resources"))

    other = dataclasses.replace(settings, dir=str(tmp_path / "other"), namespace=settings.namespace + "x")
    make_topics(other)
    with Feeder(other, scripted):
        assert host.run(other, config)["status"] == 0
    straight = newest_weights(read("resources", other))
    for name, tensor in straight.items():
        assert float((tensor - disturbed[name]).abs().max()) < 1e-6, name
    assert [m["content_hash"] for m in read("batches", other)] == [m["content_hash"] for m in manifests]


def newest_weights(published: list[Event]) -> dict[str, Any]:
    return load_tensors(verify(max(published, key=lambda event: event["version"])["weights"]))


def test_a_run_with_validation_and_a_server(
    settings: Settings, config: LearnerConfig, read: Read, tmp_path: Path, model_dir: Path
) -> None:
    validation = tmp_path / "validation.jsonl"
    validation.write_text("".join(f'{{"input": "held out {n}"}}\n' for n in range(5)))
    config = dataclasses.replace(config, validation_file=validation, validate_every=2, need_server=True)
    records: list[dict[str, Any]] = []
    stages: list[tuple[str, int]] = []
    learner = Learner(
        settings,
        config,
        PlainBackend(model_dir),
        on_step=records.append,
        on_stage=lambda stage, step: stages.append((stage, step)),
    )
    learner._compare_with_server = lambda version: 0.5  # type: ignore[method-assign]
    with Feeder(settings, scripted, serve="server-1") as feeder:
        state = learner.run()
        check_account(read, config, feeder, steps=3)
    assert [record["step"] for record in state.validation] == [0, 2, 3]
    assert all(record["rollouts"] == 5 for record in state.validation)
    assert [record["step"] for record in records if "step" in record] == [1, 2, 3]
    assert feeder.acknowledged == [1, 2, 3, 4]
    assert [stage for stage, step in stages if step == 2] == list(STAGES[1:])
    assert {event["mode"] for event in read("rollout-requests")} == {"train", "val"}
    metrics = json.loads(read("batches")[1]["metrics"])
    assert metrics["served_logprob_diff"] == 0.5
    assert metrics["rows_per_rollout"] > 1
    assert 0 <= metrics["reward_mean"] <= 1
    (trainer,) = {e["worker_id"] for e in read("workers") if e["role"] == "trainer"}
    assert trainer == "trainer-learner"


def test_failures_are_settled_and_a_missing_reward_is_dropped(
    settings: Settings, config: LearnerConfig, read: Read, model_dir: Path
) -> None:
    played: dict[str, int] = {}

    def play(request: Event) -> Event:
        event = scripted(request)
        sibling = played[request["group_id"]] = played.get(request["group_id"], 0) + 1
        if sibling == 1:
            return joined(request["rollout_id"], status="failed", reason_code="worker_lost", triplets=[], reward=None)
        if sibling == 2 and len(played) % 3 == 0:
            return joined(request["rollout_id"], triplets=event["triplets"], reward=None, reason_code="no_reward")
        return event

    with Feeder(settings, play) as feeder:
        state = Learner(settings, config, PlainBackend(model_dir)).run()
        check_account(read, config, feeder, steps=3)
    totals: dict[str, int] = {}
    for record in state.history:
        for name, count in record["outcomes"].items():
            totals[name] = totals.get(name, 0) + count
    assert (totals["failed"], totals["reason:worker_lost"]) == (9, 9)
    assert totals["dropped"] == totals["reason:no_reward"] >= 1
    assert totals["trained"] == 27 - totals["dropped"]


@pytest.mark.faults
def test_groups_with_nothing_to_train_are_settled_with_the_step_and_others_collected_whatever_is_killed(
    host: Host, settings: Settings, config: LearnerConfig, read: Read
) -> None:
    """Two rounds without a reward, one that trains; killed before anything of it is durable."""
    config = dataclasses.replace(config, steps=2)

    def play(request: Event) -> Event:
        event = scripted(request)
        return event if len(feeder.played) >= 24 else joined(request["rollout_id"], reward=None, triplets=[])

    with Feeder(settings, play) as feeder:
        assert host.run(settings, config, kill=("trained", 1))["status"] == -9
        assert read("batches") == []
        ended = host.run(settings, config)
    assert ended["status"] == 0 and "error" not in ended, ended
    assert verify_chain(read("batches")) == 2
    settled = {o["rollout_id"]: o for manifest in read("batches") for o in manifest["rollouts"]}
    assert settled.keys() == feeder.played.keys() == {r["rollout_id"] for r in read("rollout-requests")}
    assert [o["reason_code"] for o in settled.values() if o["outcome"] == "dropped"] == ["no_reward"] * 24
    assert ended["summary"]["rollouts"] == {"trained": 24, "dropped": 24, "failed": 0, "cancelled": 0}


def test_rounds_without_end_that_hold_nothing_to_train_stop_the_run_and_say_why(
    settings: Settings,
    config: LearnerConfig,
    model_dir: Path,
    read: Read,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(rounds, "MAX_ROUNDS", 3)
    with (
        Feeder(settings, lambda request: joined(request["rollout_id"], reward=None, triplets=[])) as feeder,
        pytest.raises(rounds.NothingToTrain, match=r"36 rollouts of 9 groups .*no_reward 36.*call emit_reward"),
    ):
        Learner(settings, config, PlainBackend(model_dir)).run()
    assert len(feeder.played) == 36, "each round asks for rollouts of its own"
    assert caplog.text.count("step 1: none of the 12 rollouts of 3 groups can be trained (no_reward 12)") == 3
    assert read("batches") == []


def test_waiting_names_what_is_missing_and_stops_when_told(
    settings: Settings, config: LearnerConfig, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()

    def stop_once_told() -> None:
        deadline = time.monotonic() + 30
        while "step 1 has waited" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
        stop.set()

    learner = Learner(settings, config, PlainBackend(model_dir), stop=stop)
    threading.Thread(target=stop_once_told, daemon=True).start()
    state = learner.run()
    assert state.step == 0
    assert "step 1 has waited" in caplog.text
    assert "12 of 12 rollouts: ro-" in caplog.text


def test_a_group_closes_without_its_last_sibling_and_the_late_one_is_settled_in_the_next_step(
    settings: Settings, config: LearnerConfig, model_dir: Path, read: Read, producer: EventProducer
) -> None:
    held: list[Event] = []

    def play(request: Event) -> Event | None:
        if held:
            return scripted(request)
        fields = ("group_id", "group_size", "run_id", "resources_id")
        held.append({**scripted(request), **{name: request[name] for name in fields}})
        return None

    def on_stage(stage: str, step: int) -> None:
        if (stage, step) == ("trained", 1):
            producer.deliver("triplets", [(held[0]["group_id"], held[0])])

    config = dataclasses.replace(config, steps=2, group_deadline_seconds=1.0, min_siblings=2)
    with Feeder(settings, play):
        Learner(settings, config, PlainBackend(model_dir), on_stage=on_stage).run()
    first, second = sorted(read("batches"), key=lambda m: m["step"])
    assert len(first["rollouts"]) == 11
    late = [o for o in second["rollouts"] if o["rollout_id"] == held[0]["rollout_id"]]
    assert [(o["outcome"], o["reason_code"]) for o in late] == [("dropped", "late_triplets")]
    assert len(second["rollouts"]) == 13


def test_without_tasks_it_trains_on_the_groups_that_arrive(
    settings: Settings, config: LearnerConfig, model_dir: Path, read: Read, producer: EventProducer
) -> None:
    config = dataclasses.replace(config, tasks_file=None, steps=2, groups_per_step=2)
    groups = [
        [
            joined(f"ro-{g}-{i}", group_id=f"g{g}", group_size=4, run_id=f"anybody-{g}", reward=float(i % 2))
            for i in range(4)
        ]
        for g in range(4)
    ]
    foreign = joined("ro-foreign", resources_id="another-model")
    events = [foreign, *(event for group in groups for event in group)]
    producer.deliver("triplets", [(event["group_id"] or event["rollout_id"], event) for event in events])
    backend = PlainBackend(model_dir)
    state = Learner(settings, config, backend).run()
    assert state.step == 2
    assert backend.rows == [8, 8]
    settled = [o["rollout_id"] for m in read("batches") for o in m["rollouts"]]
    assert sorted(settled) == sorted(event["rollout_id"] for group in groups for event in group)
    assert read("rollout-requests") == []
    assert sum(offset for *_, offset in state.offsets) == len(events)


def test_no_server_is_an_error_with_a_name_and_a_remedy(
    settings: Settings, config: LearnerConfig, model_dir: Path
) -> None:
    config = dataclasses.replace(config, need_server=True, ack_timeout_seconds=1.0)
    with pytest.raises(NotServed, match=r"no server acknowledged policy version 1 within 1 s .*--no-server"):
        Learner(settings, config, PlainBackend(model_dir)).run()


def test_a_refusing_server_ends_the_wait_at_once(settings: Settings, config: LearnerConfig, model_dir: Path) -> None:
    config = dataclasses.replace(config, need_server=True, ack_timeout_seconds=30.0)

    def on_stage(stage: str, step: int) -> None:
        if stage == "weights_written":
            next(Path(settings.dir).glob("weights/policy/v*/model.safetensors")).write_bytes(b"damaged")

    learner = Learner(settings, config, PlainBackend(model_dir), on_stage=on_stage)
    with (
        Feeder(settings, scripted, serve="server-1"),
        pytest.raises(NotServed, match="server-1 refused policy version 1"),
    ):
        learner.run()


def test_a_checkpoint_of_another_run_is_not_taken_over(
    settings: Settings, config: LearnerConfig, model_dir: Path
) -> None:
    config = dataclasses.replace(config, steps=0)
    Learner(settings, config, PlainBackend(model_dir)).run()
    with pytest.raises(CheckpointMismatch, match="group_size 4, not 8"):
        Learner(settings, dataclasses.replace(config, group_size=8), PlainBackend(model_dir)).run()


def test_a_lost_checkpoint_is_noticed(
    settings: Settings, config: LearnerConfig, model_dir: Path, tmp_path: Path, read: Read
) -> None:
    with Feeder(settings, scripted):
        Learner(settings, dataclasses.replace(config, steps=1), PlainBackend(model_dir)).run()
    elsewhere = dataclasses.replace(settings, dir=str(tmp_path / "empty"))
    with pytest.raises(CheckpointLost, match="the log has step 1 of learner learner"):
        Learner(elsewhere, config, PlainBackend(model_dir)).run()
    another = dataclasses.replace(config, learner_id="second", run_id="second", steps=0)
    state = Learner(elsewhere, another, PlainBackend(model_dir)).run()
    assert state.version == 3, "versions of shared resources go on"


def test_a_log_that_was_replaced_is_noticed(
    settings: Settings, config: LearnerConfig, model_dir: Path, broker: Any
) -> None:
    with Feeder(settings, scripted):
        Learner(settings, dataclasses.replace(config, steps=1), PlainBackend(model_dir)).run()
    fresh = dataclasses.replace(settings, namespace=settings.namespace + "x")
    make_topics(fresh)
    with pytest.raises(AglStreamError, match="the log was cut or replaced"):
        Learner(fresh, config, PlainBackend(model_dir)).run()


def test_two_learners_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        lock_learner(tmp_path / "learner"),
        pytest.raises(FolderNotWritable, match="another process trains in"),
        lock_learner(tmp_path / "learner"),
    ):
        pass
    with lock_learner(tmp_path / "learner"):
        pass


def test_rows_reach_the_back_end_weighted(settings: Settings, config: LearnerConfig, model_dir: Path) -> None:
    seen: list[Any] = []

    class Looking(PlainBackend):
        def step(self, rows: Any, *, version_in: int | None = None) -> dict[str, float]:
            seen.extend(rows)
            return super().step(rows, version_in=version_in)

    with Feeder(settings, scripted):
        Learner(settings, dataclasses.replace(config, steps=1), Looking(model_dir)).run()
    assert len({row.rollout_id for row in seen}) == 12
    by_rollout: dict[str, float] = {}
    for row in seen:
        by_rollout[row.rollout_id] = by_rollout.get(row.rollout_id, 0.0) + row.weight
    assert all(weight == pytest.approx(len(seen) / 12) for weight in by_rollout.values())
    assert random_rows(0)[0] not in seen
