"""Telling the world of a new version, and hearing that it is served."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agl_stream.errors import AglStreamError
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.ids import event_id
from agl_stream.trainer.log_follower import LogFollower

log = logging.getLogger(__name__)

Event = dict[str, Any]


class NotServed(AglStreamError):
    """No server took up a new version."""


def llm_resources(gateway_url: str, model: str, sampling: dict[str, Any]) -> dict[str, Any]:
    """The resources of a run that is given none: one model, reached through the gateway."""
    return {
        "llm": {
            "resource_type": "proxy_llm",
            "endpoint": gateway_url.rstrip("/") + "/v1",
            "model": model,
            "sampling_parameters": sampling,
        }
    }


def resources_event(
    *,
    resources_id: str,
    version: int,
    resources: str,
    run_id: str,
    learner_id: str,
    step: int,
    occurred_at_us: int,
) -> Event:
    """ResourcesPublished, still without weights. The same version has the same event id."""
    return {
        "event_id": event_id("resources", resources_id, version),
        "occurred_at_us": occurred_at_us,
        "resources_id": resources_id,
        "version": version,
        "resources": resources,
        "weights": None,
        "run_id": run_id,
        "learner_id": learner_id,
        "step": step,
    }


def publish_batch(producer: EventProducer, manifest: Event) -> None:
    """Puts a manifest on the log; returns once it is acknowledged."""
    producer.deliver("batches", [(manifest["learner_id"], manifest)])


def publish_resources(producer: EventProducer, event: Event) -> None:
    """Puts a version on the log; returns once it is acknowledged."""
    producer.deliver("resources", [(f"{event['resources_id']}@{event['version']}", event)])


@dataclass
class _Heard:
    version: int
    heard_at: float
    refused: str


class ServerWatch:
    """Knows from heartbeats which version each server of some resources serves. Reads ``workers`` from its end on."""

    def __init__(self, follower: LogFollower, resources_id: str) -> None:
        self._follower = follower
        self._resources_id = resources_id
        self._servers: dict[str, _Heard] = {}

    def served(self) -> set[int]:
        """Versions being served, as far as heard."""
        return {heard.version for heard in self._servers.values()}

    def wait(self, version: int, timeout_seconds: float, stopped: Callable[[], bool], report_seconds: float) -> bool:
        """Waits until a server serves ``version``; False when ``stopped``.

        Raises NotServed: at once when a server refuses the version or serves a later one, else after
        ``timeout_seconds``.
        """
        started = time.monotonic()
        reported = started
        while not self._acknowledged(version):
            now = time.monotonic()
            if stopped():
                return False
            if now - started > timeout_seconds:
                raise NotServed(
                    f"no server acknowledged {self._resources_id} version {version} within {timeout_seconds:g} s "
                    f"(--ack-timeout); {self._describe()}. Start `agl-stream serve --resources-id "
                    f"{self._resources_id}`, or train without one (--no-server)"
                )
            if now - reported > report_seconds:
                reported = now
                log.warning(
                    "waiting for a server to load %s version %d for %.0f s; %s",
                    self._resources_id,
                    version,
                    now - started,
                    self._describe(),
                )
            self._read(0.2)
        return True

    def _acknowledged(self, version: int) -> bool:
        for worker_id, heard in self._servers.items():
            if heard.version == version:
                return True
            if heard.version > version:
                raise NotServed(
                    f"server {worker_id} serves {self._resources_id} version {heard.version}, beyond version {version} "
                    "of this learner: another learner publishes the same resources; give each its own --resources-id"
                )
            if heard.refused.startswith(f"version {version}:"):
                raise NotServed(f"server {worker_id} refused {self._resources_id} {heard.refused}")
        return False

    def _read(self, timeout_seconds: float) -> None:
        for record in self._follower.poll(timeout_seconds):
            event = record.event
            if event["role"] != "server" or event["resources_id"] != self._resources_id:
                continue
            if event["status"] == "stopped":
                self._servers.pop(event["worker_id"], None)
                continue
            stats = json.loads(event["stats"])
            self._servers[event["worker_id"]] = _Heard(
                event["resources_version"], time.monotonic(), str(stats.get("refused", ""))
            )

    def _describe(self) -> str:
        if not self._servers:
            return "no server of these resources has been heard of"
        now = time.monotonic()
        return "heard of: " + ", ".join(
            f"{worker_id} with version {heard.version} {now - heard.heard_at:.0f} s ago"
            for worker_id, heard in sorted(self._servers.items())
        )
