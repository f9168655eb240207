"""Broker, registry, streams and gateway as supervised processes of this machine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from agl_stream import connections
from agl_stream.local.data_folder import DataFolder, Endpoints
from agl_stream.settings import ENV_PREFIX, Settings
from agl_stream.supervise import ProcessSpec, Supervisor

_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """Fixed for the life of the system, so that a restarted process is found where it was."""

    broker: int
    registry: int
    gateway: int


class LocalSystem:
    """Starts the parts in the order in which they need each other. The supervisor stops them."""

    def __init__(self, folder: DataFolder, supervisor: Supervisor, ports: Ports, settings: Settings) -> None:
        """`settings` gives what is not decided by folder and ports: namespace, upstream, partitions and so on."""
        self._supervisor = supervisor
        self._ports = ports
        self.endpoints = Endpoints(
            bootstrap_servers=f"{_HOST}:{ports.broker}",
            registry_url=f"http://{_HOST}:{ports.registry}",
            gateway_url=f"http://{_HOST}:{ports.gateway}",
            data_dir=str(folder.path),
        )
        self._environment = {
            ENV_PREFIX + "DIR": str(folder.path),
            ENV_PREFIX + "BOOTSTRAP_SERVERS": self.endpoints.bootstrap_servers,
            ENV_PREFIX + "REGISTRY_URL": self.endpoints.registry_url,
            ENV_PREFIX + "GATEWAY_URL": self.endpoints.gateway_url,
            ENV_PREFIX + "UPSTREAM_URL": settings.upstream_url,
            ENV_PREFIX + "UPSTREAM_MODEL": settings.upstream_model,
            ENV_PREFIX + "NAMESPACE": settings.namespace,
            ENV_PREFIX + "PARTITIONS": str(settings.partitions),
        }

    def settings(self) -> Settings:
        """Settings with which this process reaches the system."""
        return Settings.load(
            dir=self.endpoints.data_dir,
            bootstrap_servers=self.endpoints.bootstrap_servers,
            registry_url=self.endpoints.registry_url,
            gateway_url=self.endpoints.gateway_url,
            upstream_url=self._environment[ENV_PREFIX + "UPSTREAM_URL"],
            upstream_model=self._environment[ENV_PREFIX + "UPSTREAM_MODEL"],
            namespace=self._environment[ENV_PREFIX + "NAMESPACE"],
            partitions=int(self._environment[ENV_PREFIX + "PARTITIONS"]),
        )

    def spec(
        self,
        name: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        ends: bool = False,
        ready_timeout_seconds: float = 60.0,
        stop_timeout_seconds: float = 10.0,
    ) -> ProcessSpec:
        """A process `agl-stream ARGUMENTS` that finds the system by its environment."""
        return ProcessSpec(
            name,
            [sys.executable, "-m", "agl_stream.cli.main", *arguments, "-v"],
            env={**self._environment, **(env or {})},
            ends=ends,
            ready_timeout_seconds=ready_timeout_seconds,
            stop_timeout_seconds=stop_timeout_seconds,
        )

    def start(self, *others: ProcessSpec, cancelled: threading.Event | None = None) -> None:
        """Start all, and `others` that need them, and wait until each is ready; returns early when `cancelled` is set.

        Raises ProcessFailed when a process does not start, AglStreamError when topics or schemas are refused.
        """
        supervisor, ports = self._supervisor, self._ports
        supervisor.start(
            self.spec("broker", "broker", "--port", str(ports.broker)),
            self.spec("registry", "registry", "--port", str(ports.registry)),
            cancelled=cancelled,
        )
        if cancelled is not None and cancelled.is_set():
            return
        self._prepare_log()
        supervisor.spawn(
            self.spec("lifecycle", "streams", "--only", "lifecycle,watchdog"),
            self.spec("sink", "streams", "--only", "sink"),
            self.spec("joiner", "streams", "--only", "joiner"),
            self.spec("gateway", "gateway", "--port", str(ports.gateway)),
        )
        # Together, since they take their time to load; whoever is first waits for the others.
        supervisor.spawn(*others)
        supervisor.wait_ready(cancelled)

    def _prepare_log(self) -> None:
        from agl_stream.cli.topics import apply

        settings = self.settings()
        apply(settings)
        connections.registry_client(settings).register_all()
