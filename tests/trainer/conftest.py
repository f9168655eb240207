"""Models for the trainer's tests, made once."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_stream.infra.embedded.testing import BrokerThread
from agl_stream.producers.event_producer import EventProducer
from agl_stream.settings import Settings
from agl_stream.trainer.log_follower import LogFollower

sys.path.insert(0, str(Path(__file__).parent))

from trainer_makers import make_topics, small_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of hidden size 64."""
    return small_model(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture
def settings(broker: BrokerThread, tmp_path: Path) -> Settings:
    """A namespace and a folder of its own on the shared broker, with topics and schemas."""
    made = Settings(
        register_schemas=True,
        dir=str(tmp_path / "data"),
        bootstrap_servers=broker.bootstrap_servers,
        registry_url=broker.registry_url,
        namespace="t" + uuid.uuid4().hex[:8],
        partitions=3,
        heartbeat_seconds=0.5,
        delivery_timeout_seconds=30.0,
        linger_ms=1.0,
    )
    make_topics(made)
    return made


@pytest.fixture
def producer(settings: Settings) -> Iterator[EventProducer]:
    with EventProducer(settings, name="tests") as made:
        yield made


@pytest.fixture
def read(settings: Settings, producer: EventProducer) -> Callable[..., list[dict[str, Any]]]:
    """All events of a topic as they stand, of this or of other settings."""

    def read_all(topic: str, other: Settings | None = None) -> list[dict[str, Any]]:
        with LogFollower(other or settings, [topic], producer, name="tests") as follower:
            return [record.event for record in follower.read_to_end()]

    return read_all
