"""Engines by the names that people choose them by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agl_stream.errors import EngineUnreachable
from agl_stream.infra.servers.apicurio import Apicurio
from agl_stream.infra.servers.cassandra import Cassandra
from agl_stream.infra.servers.connect import Connect
from agl_stream.infra.servers.engine import Engine
from agl_stream.infra.servers.home import EnginesHome
from agl_stream.infra.servers.kafka import Kafka
from agl_stream.infra.servers.postgres import Postgres
from agl_stream.infra.servers.probe import takes_connections

USUAL_PORTS = {"kafka": 9092, "cassandra": 9042, "registry": 8081, "postgres": 5432, "connect": 8083}
"""Engine -> the port its clients expect: taken when it is free. In the order of starting: Connect needs Kafka."""

ENGINES = tuple(USUAL_PORTS)


@dataclass(frozen=True)
class Choice:
    """What is wanted of the engines. None: as many nodes as before, else one. `ports` are those that must be used."""

    kafka_nodes: int | None = None
    cassandra_nodes: int | None = None
    ports: Mapping[str, int] = field(default_factory=dict[str, int])

    def make(self, engine: str, folder: Path, home: EnginesHome, *, bootstrap_servers: str) -> Engine:
        """The engine on `folder`, not started. `bootstrap_servers` are for Connect.

        Raises PortInUse, UsageError (data of another number of nodes), ToolMissing, FetchFailed; EngineUnreachable when
        Connect has no broker to start on.
        """
        port, usual = self.ports.get(engine), USUAL_PORTS[engine]
        if engine == "kafka":
            return Kafka(folder, nodes=self.kafka_nodes, port=port, prefer_port=usual, home=home)
        if engine == "cassandra":
            return Cassandra(folder, nodes=self.cassandra_nodes, port=port, prefer_port=usual, home=home)
        if engine == "registry":
            return Apicurio(folder, port=port, prefer_port=usual, home=home)
        if engine == "postgres":
            return Postgres(folder, port=port, prefer_port=usual)
        brokers = [server.rpartition(":") for server in bootstrap_servers.split(",")]
        if not any(takes_connections(host, int(port)) for host, _, port in brokers):
            raise EngineUnreachable(
                f"Kafka Connect needs a broker and none answers at {bootstrap_servers}: start one here as well "
                "(agl-stream engines start kafka connect), or set AGL_STREAM_BOOTSTRAP_SERVERS (--bootstrap-servers)"
            )
        replicas = min(3, len(bootstrap_servers.split(",")))
        return Connect(folder, bootstrap_servers, replication_factor=replicas, port=port, prefer_port=usual, home=home)
