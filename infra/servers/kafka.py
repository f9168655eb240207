"""Apache Kafka in KRaft mode: one combined node, or three that survive the death of one."""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from agl_stream.infra.servers.components import KAFKA
from agl_stream.infra.servers.engine import CONFIG_FOLDER, HOST, LOG4J_OPTION, Engine, read_properties, write_properties
from agl_stream.infra.servers.home import EnginesHome
from agl_stream.infra.servers.jvm import class_path, java_command
from agl_stream.infra.servers.process import ServerFailed, ServerProcess

_CLUSTER_ID_FILE = "cluster-id"
_FORMATTED = "meta.properties"

# Logged when the broker is admitted to the cluster and its listeners answer, whatever their security is.
_READY_LINE = "Kafka Server started"


class Kafka(Engine):
    """`nodes` combined controllers and brokers (as before, or one). Three: replication factor 3, min.insync.replicas 2.

    `conf` overrides or adds server properties of every node; "{port}" in a value becomes the node's client port and
    "{controller_port}" its controller port. `port` is the client port of the first node,
    `prefer_port` the one it gets when it is free.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int | None = None,
        heap_mb: int = 256,
        conf: Mapping[str, object] | None = None,
        port: int | None = None,
        prefer_port: int | None = None,
        home: EnginesHome | None = None,
    ) -> None:
        super().__init__(folder)
        home = home or EnginesHome.default()
        self._jars = home.fetch(KAFKA)
        self.version = home.version(KAFKA, "kafka_2.13")
        self._classes = class_path(self._jars / "lib")
        self._conf = dict(conf or {})
        numbers = range(1, self.keep_count(nodes) + 1)
        ports = self.keep_ports(
            *(f"broker-{n}" for n in numbers),
            *(f"controller-{n}" for n in numbers),
            wanted={"broker-1": port},
            preferred={"broker-1": prefer_port},
        )
        self.ports = [ports[f"broker-{n}"] for n in numbers]
        self._controller_ports = [ports[f"controller-{n}"] for n in numbers]
        self.nodes = [self._node(n, heap_mb) for n in numbers]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports)

    @property
    def address(self) -> str:
        return self.bootstrap_servers

    @property
    def settings(self) -> dict[str, str]:
        return {"bootstrap_servers": self.bootstrap_servers, "replication_factor": str(min(3, len(self.ports)))}

    def spawn(self) -> None:
        self._format()
        super().spawn()

    def properties(self, number: int) -> dict[str, object]:
        """Server properties of node `number`, counted from 1."""
        count = len(self.ports)
        replicas, least = min(3, count), 2 if count >= 3 else 1
        port, controller_port = self.ports[number - 1], self._controller_ports[number - 1]
        voters = ",".join(f"{n}@{HOST}:{port}" for n, port in enumerate(self._controller_ports, 1))
        places = {"{port}": str(port), "{controller_port}": str(controller_port)}
        own = {name: fill(str(value), places) for name, value in self._conf.items()}
        return {
            **read_properties(CONFIG_FOLDER / "kafka.properties"),
            "node.id": number,
            "log.dirs": self.folder / f"node-{number}" / "data",
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "default.replication.factor": replicas,
            "min.insync.replicas": least,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": least,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": least,
            **own,
        }

    def _node(self, number: int, heap_mb: int) -> ServerProcess:
        folder = self.folder / f"node-{number}"
        return ServerProcess(
            f"kafka-{number}",
            java_command(
                self._jars,
                "kafka",
                ["-cp", self._classes, "kafka.Kafka", str(folder / "server.properties")],
                heap_mb=heap_mb,
                options=[LOG4J_OPTION],
            ),
            folder,
            ready=lambda process: process.printed_since_start(_READY_LINE),
        )

    def _format(self) -> None:
        """Write the configuration of all nodes, and give those without data the cluster's identity."""
        fresh: list[tuple[int, subprocess.Popen[bytes]]] = []
        for number in range(1, len(self.ports) + 1):
            folder = self.folder / f"node-{number}"
            folder.mkdir(exist_ok=True)
            properties = folder / "server.properties"
            write_properties(properties, self.properties(number))
            if (folder / "data" / _FORMATTED).exists():
                continue
            tool = ["-cp", self._classes, "kafka.tools.StorageTool", "format", "-t", self._cluster_id()]
            options = [LOG4J_OPTION]
            command = java_command(
                self._jars, "kafka", [*tool, "-c", str(properties), "--ignore-formatted"], heap_mb=96, options=options
            )
            fresh.append(
                (number, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder))
            )
        for number, process in fresh:
            said, _ = process.communicate(timeout=120)
            if process.returncode != 0:
                raise ServerFailed(
                    f"kafka node {number} could not format {self.folder}: {said.decode(errors='replace')[-1500:]}"
                )

    def _cluster_id(self) -> str:
        place = self.folder / _CLUSTER_ID_FILE
        if not place.exists():
            # 16 bytes in base64 as Kafka writes them, never with a leading "-", which its tool reads as an option.
            drawn = base64.urlsafe_b64encode(b"\x68" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
            place.write_text(drawn)
        return place.read_text()


def fill(text: str, places: Mapping[str, str]) -> str:
    """`text` with its places filled; other braces, as of a pattern, stay."""
    for place, value in places.items():
        text = text.replace(place, value)
    return text
