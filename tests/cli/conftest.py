"""A namespace of its own on the shared broker, with topics, and a command line that looks at it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agl_stream.cli.main import cli
from agl_stream.cli.topics import apply
from agl_stream.producers.event_producer import EventProducer
from agl_stream.settings import Settings

Agl = Callable[..., Result]


@pytest.fixture
def settings(bootstrap_servers: str, registry_url: str, tmp_path: Path) -> Settings:
    return Settings.load(
        bootstrap_servers=bootstrap_servers,
        registry_url=registry_url,
        namespace="t" + uuid.uuid4().hex[:8],
        dir=str(tmp_path / "data"),
        partitions=4,
    )


@pytest.fixture
def with_topics(settings: Settings) -> Settings:
    apply(settings)
    return settings


@pytest.fixture
def producer(with_topics: Settings) -> Iterator[EventProducer]:
    with EventProducer(with_topics, name="test") as made:
        yield made


@pytest.fixture
def agl(settings: Settings) -> Agl:
    """Calls a verb in this process with the settings in the environment, as a foreign terminal would have them."""
    environment = {
        f"AGL_STREAM_{name.upper()}": str(getattr(settings, name))
        for name in ("bootstrap_servers", "registry_url", "namespace", "dir", "partitions")
    }

    def call(*arguments: str, **more: str) -> Result:
        return CliRunner().invoke(
            cli, list(arguments), env={**environment, **more}, catch_exceptions=True, prog_name="agl-stream"
        )

    return call


def parsed(result: Result) -> list[Any]:
    """The JSON values of an answer, one a line."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return [json.loads(line) for line in result.stdout.splitlines()]
