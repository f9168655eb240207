"""The server's follower: newest usable version, refusals by name, acknowledgements at once."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch

from agl_stream.producers.event_producer import EventProducer
from agl_stream.settings import Settings
from agl_stream.trainer.publication import publish_resources, resources_event
from agl_stream.trainer.server.follower import ResourcesFollower
from agl_stream.trainer.weights import WeightsFolder, load_tensors

Event = dict[str, Any]
Read = Callable[..., list[Event]]


class RecordingEngine:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.version = self.completions = self.completion_tokens = self.in_flight = 0
        self.swaps: list[int] = []

    async def swap(self, version: int, tensors: Mapping[str, torch.Tensor]) -> float:
        assert float(tensors["model.norm.weight"][0]) == version
        self.version = version
        self.swaps.append(version)
        return 0.0


class Publisher:
    """Publishes versions whose norm weights are their number."""

    def __init__(self, producer: EventProducer, root: Path, model_dir: Path) -> None:
        self.folder = WeightsFolder(root)
        self._producer = producer
        self._model_dir = model_dir
        self._tensors = load_tensors(model_dir)

    def publish(self, version: int, resources_id: str = "policy", damage: Callable[[Path], Any] | None = None) -> None:
        tensors = {**self._tensors, "model.norm.weight": self._tensors["model.norm.weight"] * 0 + version}
        ref = self.folder.write(version, tensors, self._model_dir)
        if damage is not None:
            damage(self.folder.path(version))
        event = resources_event(
            resources_id=resources_id,
            version=version,
            resources="{}",
            run_id="run",
            learner_id="learner",
            step=version,
            occurred_at_us=1,
        )
        publish_resources(self._producer, {**event, "weights": ref})


@asynccontextmanager
async def following(settings: Settings, engine: RecordingEngine) -> AsyncIterator[ResourcesFollower]:
    failures: list[BaseException] = []
    follower = ResourcesFollower(
        settings,
        engine,
        asyncio.get_running_loop(),
        resources_id="policy",
        worker_id="server-1",
        on_failure=failures.append,
    )
    follower.start()
    assert await asyncio.to_thread(follower.caught_up, 30)
    try:
        yield follower
    finally:
        await asyncio.to_thread(follower.stop)
    assert failures == []


async def heard(read: Read, enough: Callable[[Event], bool]) -> Event:
    """The first heartbeat of a server that satisfies ``enough``."""
    async with asyncio.timeout(20):
        while True:
            for event in await asyncio.to_thread(read, "workers"):
                if event["role"] == "server" and enough(event):
                    return event


async def test_it_serves_each_new_version_and_says_so(
    settings: Settings, producer: EventProducer, read: Read, tmp_path: Path, model_dir: Path
) -> None:
    settings = dataclasses.replace(settings, heartbeat_seconds=30.0)  # only the immediate ones come in time
    publisher, engine = Publisher(producer, tmp_path / "weights", model_dir), RecordingEngine()
    async with following(settings, engine):
        for version in (1, 2, 3):
            await asyncio.to_thread(publisher.publish, version)
            event = await heard(read, lambda e, version=version: e["resources_version"] == version)
            assert (event["worker_id"], event["resources_id"]) == ("server-1", "policy")
        await asyncio.to_thread(publisher.publish, 9, "another-model")
        await asyncio.to_thread(publisher.publish, 4)
        await heard(read, lambda e: e["resources_version"] == 4)
    assert engine.swaps == [1, 2, 3, 4]
    stopped = [event for event in await asyncio.to_thread(read, "workers") if event["status"] == "stopped"]
    assert len(stopped) == 1


async def test_it_starts_with_the_newest_usable_version_and_acknowledges_a_repetition(
    settings: Settings, producer: EventProducer, read: Read, tmp_path: Path, model_dir: Path
) -> None:
    settings = dataclasses.replace(settings, heartbeat_seconds=30.0)
    publisher, engine = Publisher(producer, tmp_path / "weights", model_dir), RecordingEngine()
    for version in (1, 2):
        publisher.publish(version)
    publisher.publish(3, damage=lambda folder: (folder / "model.safetensors").unlink())
    async with following(settings, engine):
        assert engine.swaps == [2]
        event = await heard(read, lambda e: e["resources_version"] == 2)
        assert json.loads(event["stats"])["refused"].startswith("version 3: weights ")
        before = len(await asyncio.to_thread(read, "workers"))
        await asyncio.to_thread(publisher.publish, 2)
        async with asyncio.timeout(20):
            while len(await asyncio.to_thread(read, "workers")) == before:
                pass
    assert engine.swaps == [2]


async def test_damaged_weights_are_refused_by_name_and_the_old_ones_stay_until_good_ones_come(
    settings: Settings, producer: EventProducer, read: Read, tmp_path: Path, model_dir: Path, caplog: Any
) -> None:
    publisher, engine = Publisher(producer, tmp_path / "weights", model_dir), RecordingEngine()
    async with following(settings, engine):
        await asyncio.to_thread(publisher.publish, 1)
        await heard(read, lambda e: e["resources_version"] == 1)

        def cut_short(folder: Path) -> None:
            file = folder / "model.safetensors"
            file.write_bytes(file.read_bytes()[:1000])

        await asyncio.to_thread(publisher.publish, 2, "policy", cut_short)
        refusing = await heard(read, lambda e: "refused" in json.loads(e["stats"]))
        assert refusing["resources_version"] == 1
        assert json.loads(refusing["stats"])["refused"].startswith("version 2: weights ")
        assert engine.version == 1
        await asyncio.to_thread(publisher.publish, 2)
        accepted = await heard(read, lambda e: e["resources_version"] == 2)
        assert "refused" not in json.loads(accepted["stats"])
    assert "policy version 2 is refused and version 1 stays" in caplog.text
