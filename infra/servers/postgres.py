"""PostgreSQL as Debian packages it, for the SQL sinks of Kafka Connect."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from agl_stream.errors import FolderNotWritable
from agl_stream.infra.servers.engine import HOST, Engine
from agl_stream.infra.servers.process import ServerFailed, ServerProcess
from agl_stream.infra.servers.tools import ToolMissing, find_tool, postgres_folder, postgres_version, setpriv

DATABASE, USER = "agl", "postgres"

_READY_LINE = "database system is ready to accept connections"


class Postgres(Engine):
    """One server with the database `agl` and the extension hstore, which Avro maps become. Anybody on loopback may
    connect as `postgres`: it is for tests and trials.

    Root runs it as the system's user postgres, because the server refuses root. `conf` are server settings.
    """

    def __init__(
        self,
        folder: Path,
        *,
        conf: Mapping[str, object] | None = None,
        port: int | None = None,
        prefer_port: int | None = None,
    ) -> None:
        super().__init__(folder)
        self._programs = postgres_folder()
        self.version = postgres_version(self._programs)
        self.port = self.keep_ports("sql", wanted={"sql": port}, preferred={"sql": prefer_port})["sql"]
        self._data = self.folder / "data"
        self._privileges = _as_postgres() if os.geteuid() == 0 else []
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
            "fsync": "off",  # A kill loses nothing by this, a power cut may.
            **(conf or {}),
        }
        arguments = [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
        self.nodes = [
            ServerProcess(
                "postgres",
                [str(self._programs / "postgres"), "-D", str(self._data), *arguments],
                self.folder,
                ready=lambda process: process.printed_since_start(_READY_LINE),
                privileges=self._privileges,
                stop_signal=signal.SIGINT,  # SIGTERM would wait for clients to go.
            )
        ]

    @property
    def jdbc_url(self) -> str:
        return f"jdbc:postgresql://{HOST}:{self.port}/{DATABASE}"

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/{DATABASE}"

    @property
    def address(self) -> str:
        return self.url

    @property
    def settings(self) -> dict[str, str]:
        return {"connect_jdbc_url": self.jdbc_url, "connect_jdbc_username": USER}

    def start(self) -> None:
        if not (self._data / "global" / "pg_control").exists():
            self._initialise()
        super().start()
        # Also when it is not fresh: the earlier start may have ended between the two.
        if DATABASE not in self.sql("select datname from pg_database", database="postgres").splitlines():
            self.sql(f"create database {DATABASE}", database="postgres")
        self.sql("create extension if not exists hstore")

    def sql(self, text: str, *, database: str = DATABASE) -> str:
        """Run statements; rows as lines, columns divided by "|". Raises ServerFailed with the server's words."""
        command = [str(self._programs / "psql"), "-h", HOST, "-p", str(self.port), "-U", USER, "-XqAt"]
        done = subprocess.run(
            [*command, "-v", "ON_ERROR_STOP=1", database, "-c", text], capture_output=True, text=True, timeout=120
        )
        if done.returncode != 0:
            raise ServerFailed(f"PostgreSQL refused {text[:200]!r}: {done.stderr.strip()}")
        return done.stdout.strip()

    def _initialise(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)  # Of an earlier try that was broken off.
        self._data.mkdir()
        self._data.chmod(0o700)
        if self._privileges:
            shutil.chown(self._data, USER, USER)
        initdb = [str(self._programs / "initdb"), "-D", str(self._data), "-A", "trust", "-U", USER, "--no-sync"]
        command = [*initdb, "-E", "UTF8", "--locale=C"]
        if self._privileges:
            command = [setpriv(), *self._privileges, "--", *command]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=120)
        if done.returncode != 0:
            if self._privileges and "ermission denied" in done.stderr:
                raise FolderNotWritable(
                    f"PostgreSQL, which root runs as user {USER}, cannot enter {self._data}: choose a folder with "
                    "--dir (AGL_STREAM_DIR) whose parents everybody may enter, as below /var/lib or /tmp"
                )
            raise ServerFailed(f"initdb could not make {self._data}: {done.stderr.strip()[-1500:]}")


def _as_postgres() -> list[str]:
    """Options of setpriv that make root the user postgres; ToolMissing when there is none."""
    try:
        pwd.getpwnam(USER)
    except KeyError:
        raise ToolMissing(
            f"there is no user {USER}, as which root runs PostgreSQL; install it (Debian: apt-get install postgresql)"
        ) from None
    find_tool("setpriv", "util-linux", "root runs PostgreSQL as another user through it")
    return [f"--reuid={USER}", f"--regid={USER}", "--init-groups"]
