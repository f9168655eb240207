"""Broker, registry, streams and gateway as supervised processes of this machine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from agl_stream import connections
from agl_stream.errors import EngineUnreachable
from agl_stream.local.data_folder import DataFolder, Endpoints
from agl_stream.local.engines import Engines
from agl_stream.settings import Settings, as_environment
from agl_stream.supervise import ProcessSpec, Supervisor

_HOST = "127.0.0.1"
_EMBEDDED = Engines()

# A Java server on a machine that is busy with the others.
_REAL_READY_SECONDS, _REAL_STOP_SECONDS = 150.0, 40.0


@dataclass(frozen=True)
class Ports:
    """Fixed for the life of the system, so that a restarted process is found where it was."""

    broker: int
    registry: int
    gateway: int
    store: int = 0
    """Of a Cassandra that is started here."""


class LocalSystem:
    """Starts the parts in the order in which they need each other. The supervisor stops them."""

    def __init__(
        self,
        folder: DataFolder,
        supervisor: Supervisor,
        ports: Ports,
        settings: Settings,
        engines: Engines = _EMBEDDED,
    ) -> None:
        """`settings` gives what is not decided by folder, ports and engines: namespace, upstream, partitions and so on.

        What real engines need has to be fetched before (`Engines.fetch`).
        """
        self._supervisor = supervisor
        self._ports = ports
        self._engines = engines
        self.endpoints = Endpoints(
            bootstrap_servers=f"{_HOST}:{ports.broker}",
            registry_url=engines.registry_url(_HOST, ports.registry),
            gateway_url=f"http://{_HOST}:{ports.gateway}",
            data_dir=str(folder.path),
        )
        self._shared = {
            "dir": self.endpoints.data_dir,
            "bootstrap_servers": self.endpoints.bootstrap_servers,
            "registry_url": self.endpoints.registry_url,
            "gateway_url": self.endpoints.gateway_url,
            "upstream_url": settings.upstream_url,
            "upstream_model": settings.upstream_model,
            "namespace": settings.namespace,
            "partitions": settings.partitions,
            "replication_factor": 1,  # One broker, whatever is configured for a cluster.
            "store_url": engines.store_url(_HOST, ports.store, settings),
        }

    def settings(self) -> Settings:
        """Settings with which this process reaches the system."""
        return Settings.load(**self._shared)

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
            env={**as_environment(self._shared), **(env or {})},
            ends=ends,
            ready_timeout_seconds=ready_timeout_seconds,
            stop_timeout_seconds=stop_timeout_seconds,
            waits_with=EngineUnreachable.exit_code,
        )

    def start(self, *others: ProcessSpec, cancelled: threading.Event | None = None) -> None:
        """Start all, and `others` that need them, and wait until each is ready; returns early when `cancelled` is set.

        Raises ProcessFailed when a process does not start, AglStreamError when topics or schemas are refused.
        """
        supervisor, ports = self._supervisor, self._ports
        supervisor.start(*self._engine_specs(), cancelled=cancelled)
        if cancelled is not None and cancelled.is_set():
            return
        self._prepare()
        supervisor.spawn(
            self.spec("lifecycle", "streams", "--only", "lifecycle,watchdog"),
            self.spec("sink", "streams", "--only", "sink"),
            self.spec("joiner", "streams", "--only", "joiner"),
            self.spec("gateway", "gateway", "--port", str(ports.gateway)),
        )
        # Together, since they take their time to load; whoever is first waits for the others.
        supervisor.spawn(*others)
        supervisor.wait_ready(cancelled)

    def _engine_specs(self) -> list[ProcessSpec]:
        ports, engines = self._ports, self._engines
        if engines.log == "kafka":
            specs = [self._real("kafka", "kafka", ports.broker)]
        else:
            specs = [self.spec("broker", "broker", "--port", str(ports.broker))]
        if engines.registry == "apicurio":
            specs.append(self._real("apicurio", "registry", ports.registry))
        else:
            specs.append(self.spec("registry", "registry", "--port", str(ports.registry)))
        if engines.store == "cassandra":
            specs.append(self._real("cassandra", "cassandra", ports.store))
        return specs

    def _real(self, name: str, engine: str, port: int) -> ProcessSpec:
        return self.spec(
            name,
            *("engines", "start", engine, "--foreground", "--port", f"{engine}={port}"),
            ready_timeout_seconds=_REAL_READY_SECONDS,
            stop_timeout_seconds=_REAL_STOP_SECONDS,
        )

    def _prepare(self) -> None:
        """Topics, schemas and tables, before anybody asks for them."""
        from agl_stream.cli.topics import apply
        from agl_stream.streams.store.address import is_cassandra
        from agl_stream.streams.store.layout import apply_store

        settings = self.settings()
        with ThreadPoolExecutor(1) as pool:
            # Making the tables of a new Cassandra takes seconds, of which this process only waits.
            tables = pool.submit(apply_store, settings) if is_cassandra(settings) else None
            apply(settings)
            connections.registry_client(settings).register_all()
            if tables is not None:
                tables.result()
