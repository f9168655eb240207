"""A Kafka Connect worker in distributed mode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agl_stream.infra.servers.components import CONNECT_PLUGINS, KAFKA
from agl_stream.infra.servers.engine import CONFIG_FOLDER, HOST, LOG4J_OPTION, Engine, read_properties, write_properties
from agl_stream.infra.servers.home import EnginesHome
from agl_stream.infra.servers.jvm import class_path, java_command
from agl_stream.infra.servers.probe import answers_http
from agl_stream.infra.servers.process import ServerProcess


class Connect(Engine):
    """One worker on the brokers at `bootstrap_servers`; its state is in their topics, so a killed one goes on.

    `conf` overrides or adds worker properties. `replication_factor` is that of its three topics.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap_servers: str,
        *,
        replication_factor: int = 1,
        group_id: str = "connect",
        heap_mb: int = 384,
        conf: Mapping[str, object] | None = None,
        port: int | None = None,
        prefer_port: int | None = None,
        home: EnginesHome | None = None,
    ) -> None:
        super().__init__(folder)
        home = home or EnginesHome.default()
        jars, plugins = home.fetch(KAFKA), home.fetch(CONNECT_PLUGINS)
        self.version = home.version(KAFKA, "connect-runtime")
        self.port = self.keep_ports("rest", wanted={"rest": port}, preferred={"rest": prefer_port})["rest"]
        self._properties = {
            **read_properties(CONFIG_FOLDER / "connect.properties"),
            "bootstrap.servers": bootstrap_servers,
            "group.id": group_id,
            "listeners": self.url,
            "plugin.path": str(plugins),
            **{f"{topic}.storage.replication.factor": replication_factor for topic in ("config", "offset", "status")},
            **(conf or {}),
        }
        self._properties_path = self.folder / "connect.properties"
        command = java_command(
            jars,
            "connect",
            [
                *("-cp", class_path(jars / "lib")),
                *("org.apache.kafka.connect.cli.ConnectDistributed", str(self._properties_path)),
            ],
            heap_mb=heap_mb,
            options=[LOG4J_OPTION],
        )
        self.nodes = [
            ServerProcess("connect", command, self.folder, ready=lambda process: answers_http(self.url + "/connectors"))
        ]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def address(self) -> str:
        return self.url

    @property
    def settings(self) -> dict[str, str]:
        return {"connect_url": self.url}

    def spawn(self) -> None:
        write_properties(self._properties_path, self._properties)
        super().spawn()
