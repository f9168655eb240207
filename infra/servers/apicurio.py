"""Apicurio Registry, which speaks the Confluent registry's protocol. Its database is a file of the folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agl_stream.infra.servers.components import APICURIO
from agl_stream.infra.servers.engine import HOST, Engine
from agl_stream.infra.servers.home import EnginesHome
from agl_stream.infra.servers.jvm import java_command
from agl_stream.infra.servers.probe import answers_http
from agl_stream.infra.servers.process import ServerProcess

CCOMPAT_PATH = "/apis/ccompat/v7"
"""Below which Apicurio answers as a Confluent registry does."""


class Apicurio(Engine):
    """One registry. `conf` are system properties of the server.

    Schemas keep their ids over restarts and kills: by default Apicurio would forget them, and the records that name
    them could no longer be read.
    """

    def __init__(
        self,
        folder: Path,
        *,
        heap_mb: int = 192,
        conf: Mapping[str, object] | None = None,
        port: int | None = None,
        prefer_port: int | None = None,
        home: EnginesHome | None = None,
    ) -> None:
        super().__init__(folder)
        home = home or EnginesHome.default()
        files = home.fetch(APICURIO)
        self.version = home.version(APICURIO, "apicurio-registry-app").removesuffix(".Final")
        self.port = self.keep_ports("http", wanted={"http": port}, preferred={"http": prefer_port})["http"]
        # What is committed is written at once (H2 would wait half a second for more).
        database = f"jdbc:h2:file:{self.folder / 'data' / 'registry'};WRITE_DELAY=0"
        properties = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": self.port,
            "quarkus.datasource.jdbc.url": database,
            **(conf or {}),
        }
        (runner,) = files.glob("apicurio-registry-app-*-runner.jar")
        command = java_command(
            files,
            "apicurio",
            ["-jar", str(runner)],
            heap_mb=heap_mb,
            options=[f"-D{name}={value}" for name, value in properties.items()],
        )
        self.nodes = [
            ServerProcess(
                "apicurio", command, self.folder, ready=lambda process: answers_http(self.ccompat_url + "/subjects")
            )
        ]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def ccompat_url(self) -> str:
        """What clients of the Confluent registry are given."""
        return self.url + CCOMPAT_PATH

    @property
    def address(self) -> str:
        return self.ccompat_url

    @property
    def settings(self) -> dict[str, str]:
        return {"registry_url": self.ccompat_url}
