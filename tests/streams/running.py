"""Stream parts at work in a test: settings of their own namespace, topics, threads, processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agl_stream.schemas.codec import Codec
from agl_stream.schemas.registry import RegistryClient
from agl_stream.schemas.topics import TOPICS
from agl_stream.settings import Settings


def settings_for(bootstrap_servers: str, registry_url: str, folder: Path, **given: Any) -> Settings:
    """Settings with a fresh namespace, its topics made."""
    made = Settings(
        register_schemas=True,
        **{
            "bootstrap_servers": bootstrap_servers, "registry_url": registry_url, "dir": str(folder), "partitions": 4,
            "namespace": f"t{uuid.uuid4().hex[:8]}", "linger_ms": 1.0, "session_timeout_seconds": 6.0, **given,
        }
    )  # fmt: skip
    make_topics(made)
    return made


def make_topics(settings: Settings) -> None:
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    topics = [NewTopic(settings.topic(t.name), t.partitions or settings.partitions, 1) for t in TOPICS.values()]
    for future in admin.create_topics(topics).values():
        future.result(30)


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.01)


class Part:
    """``run_sink`` or ``run_joiner`` in a thread; a ``with`` starts it, waits until it is ready, and stops it."""

    def __init__(self, run: Callable[..., None], settings: Settings) -> None:
        self.stop, self.ready = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self._run, self._settings = run, settings
        self._thread = threading.Thread(target=self._main, daemon=True)

    def _main(self) -> None:
        try:
            self._run(self._settings, self.stop, self.ready.set)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Part:
        self._thread.start()
        wait_until(lambda: self.ready.is_set() or not self._thread.is_alive())
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def committed(settings: Settings, group: str, topic: str) -> int:
    """Sum of the group's committed offsets of a topic."""
    reader = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": settings.group(group)})
    count = TOPICS[topic].partitions or settings.partitions
    asked = [TopicPartition(settings.topic(topic), number) for number in range(count)]
    found = sum(p.offset for p in reader.committed(asked, timeout=10) if p.offset > 0)
    reader.close()
    return found


def read_all(settings: Settings, topic: str) -> list[dict[str, Any]]:
    """Every event of a topic as of now, partition by partition."""
    codec = Codec(RegistryClient(settings.registry_url, namespace=settings.namespace, register=True))
    reader = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": "read-all"})
    found: list[dict[str, Any]] = []
    for number in range(TOPICS[topic].partitions or settings.partitions):
        place = TopicPartition(settings.topic(topic), number, 0)
        end = reader.get_watermark_offsets(place, 10)[1]
        reader.assign([place])
        count = 0
        while count < end:
            for message in reader.consume(1000, 1.0):
                count = message.offset() + 1
                found.append(codec.decode(message.value())[1])
    reader.close()
    return found


def spawn(settings: Settings, *command: str) -> subprocess.Popen[str]:
    """``agl-stream COMMAND`` as a process with these settings; returns when it has said that it is ready."""
    names = ("bootstrap_servers", "registry_url", "dir", "namespace", "partitions", "session_timeout_seconds")
    environment = os.environ | {f"AGL_STREAM_{name.upper()}": str(getattr(settings, name)) for name in names}
    process = subprocess.Popen(
        [sys.executable, "-m", "agl_stream.cli.main", *command], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "ready" in line, line
    return process
