"""`agl-stream engines fetch|start|stop|status`: the engines that people deploy, on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from agl_stream.cli.output import emit_json, human_bytes, output_option, table
from agl_stream.cli.shared import load_settings
from agl_stream.errors import AglStreamError, UsageError
from agl_stream.settings import Settings, as_environment

if TYPE_CHECKING:
    from agl_stream.infra.servers.choice import Choice
    from agl_stream.infra.servers.records import EngineFolder, Record

NAMES = ("kafka", "cassandra", "registry", "postgres", "connect")
"""As agl_stream.infra.servers.choice.ENGINES, which would take its time to import."""

_STOP_SECONDS = 60.0

names_argument = click.argument("names", nargs=-1, type=click.Choice(NAMES), metavar="[ENGINE]...")


class StartFailed(AglStreamError):
    """A keeper ended before its engine was ready; its own exit status is kept, because it says what was wrong."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_code = status if status > 0 else 1


def _note(line: str) -> None:
    click.echo(f"agl-stream: {line}", err=True)


def _folders(settings: Settings, names: Sequence[str]) -> list[EngineFolder]:
    """The folders of the named engines, or of all, in the order of starting."""
    from agl_stream.infra.servers.records import EngineFolder

    return [EngineFolder(settings.folder, name) for name in NAMES if name in names or not names]


def fetch_engines(names: Sequence[str], settings: Settings) -> None:
    """Have all that the engines need, telling what takes time. Raises ToolMissing, FetchFailed."""
    from agl_stream.infra.servers.fetch import fetch
    from agl_stream.infra.servers.home import EnginesHome

    fetch(names, home=EnginesHome.default(settings.engines_dir), notify=_note)


@click.group(short_help="Fetch, start and stop Kafka, Cassandra and others here.")
def command() -> None:
    """Apache Kafka, Cassandra, Apicurio (registry), PostgreSQL and Kafka Connect as processes of this machine.

    They need Java 17 and, the first time, Maven; PostgreSQL is the system's. docs/engines.md tells more.
    """


@command.command("fetch")
@names_argument
@output_option
def fetch_command(names: tuple[str, ...], output: str) -> None:
    """Fetch what the named engines (default: all) need. Doing it again costs nothing."""
    from agl_stream.infra.servers.components import COMPONENTS
    from agl_stream.infra.servers.home import EnginesHome

    settings = load_settings()
    fetch_engines(names or NAMES, settings)
    home = EnginesHome.default(settings.engines_dir)
    kept = {
        str(home.folder(component)): manifest["versions"]
        for component in COMPONENTS
        if (manifest := home.manifest(component)) is not None
    }
    if output == "json":
        emit_json({"engines_dir": str(home.path), "components": kept})
        return
    click.echo(f"fetched, in {home.path}")
    rows = [(artifact, version) for versions in kept.values() for artifact, version in versions.items()]
    click.echo(table(["artifact", "version"], rows))


@command.command("start")
@names_argument
@click.option("--kafka-nodes", type=click.Choice(["1", "3"]), help="Default: as before, else 1.")
@click.option("--cassandra-nodes", type=click.Choice(["1", "3"]), help="Default: as before, else 1.")
@click.option("--port", "ports", multiple=True, metavar="ENGINE=PORT", help="Default: as before, else the usual one.")
@click.option("--foreground", is_flag=True, help="Run them in this process until Ctrl-C or its parent's end.")
@click.option("--background-keeper", is_flag=True, hidden=True)
@output_option
def start_command(
    names: tuple[str, ...],
    kafka_nodes: str | None,
    cassandra_nodes: str | None,
    ports: tuple[str, ...],
    foreground: bool,
    background_keeper: bool,
    output: str,
) -> None:
    """Start the named engines below the data folder and leave them running.

    ENGINE: kafka, cassandra, registry (Apicurio), postgres, connect (on the Kafka here, or else on the configured
    one). What runs already is left as it is. Data, ports and numbers of nodes are kept for the next start. A server
    that dies is started again. With --output json one line: an object for each engine.
    """
    from agl_stream.infra.servers.choice import Choice

    if not names:
        raise click.UsageError(f"name the engines to start: {', '.join(NAMES)}")
    choice = Choice(_number(kafka_nodes), _number(cassandra_nodes), _ports(ports))
    settings = load_settings()
    fetch_engines([name for name in NAMES if name in names], settings)
    if foreground or background_keeper:
        _keep(settings, names, choice, output, background=background_keeper)
        return
    records = _start_in_background(settings, names, choice)
    if output == "json":
        emit_json({"engines": [record.as_dict() for record in records]})
        return
    click.echo(f"running, data in {settings.folder / 'engines'}")
    click.echo(table(["engine", "version", "address"], [(r.engine, r.version, r.address) for r in records]))
    click.echo("to use them, in any terminal:")
    for variable, value in as_environment(_settings_of(records)).items():
        click.echo(f"  export {variable}={value}")


@command.command("stop")
@names_argument
@output_option
def stop_command(names: tuple[str, ...], output: str) -> None:
    """Stop the named engines (default: all) that run in the background, and wait until they are gone.

    Their data stays. Only processes that `engines start` left here are ended, never another one that has their id.
    """
    ended: list[str] = []
    problems: list[str] = []
    for folder in reversed(_folders(load_settings(), names)):
        record = folder.running()
        if record is None:
            if names:
                _note(f"{folder.engine} does not run in {folder.path}")
        elif not record.background:
            problems.append(
                f"{record.engine} runs in the foreground of process {record.keeper.pid}: end that one "
                "(Ctrl-C, or the `agl-stream up` it belongs to)"
            )
        else:
            _end(record)
            ended.append(record.engine)
            if output == "text":
                click.echo(f"{record.engine} stopped")
    if output == "json":
        emit_json({"stopped": ended})
    if problems:
        raise UsageError("; ".join(problems))


@command.command("status")
@names_argument
@output_option
def status_command(names: tuple[str, ...], output: str) -> None:
    """Show the engines that run below the data folder; whether they are ready is asked now, in their protocol.

    Exit status 1 when one of them, or one that was named and does not run, is not ready.
    """
    from agl_stream.infra.servers.probe import serves

    settings = load_settings()
    found: list[dict[str, Any]] = []
    for folder in _folders(settings, names):
        record = folder.running()
        if record is not None:
            ready = serves(record.engine, record.address)
            found.append(
                {
                    **{"engine": record.engine, "running": True, "ready": ready, "version": record.version},
                    **{"address": record.address, "pid": record.keeper.pid, "background": record.background},
                    "node_pids": {name: node.pid for name, node in record.nodes.items()},
                    "rss_bytes": record.rss_bytes(),
                    "settings": record.settings,
                }
            )
        elif names:
            found.append({"engine": folder.engine, "running": False, "ready": False})
    if output == "json":
        emit_json({"data_dir": str(settings.folder), "engines": found})
    elif not found:
        click.echo(f"no engines run in {settings.folder}; `agl-stream engines start kafka` starts one")
    else:
        click.echo(table(["engine", "version", "address", "process", "memory", "ready"], map(_row, found)))
    if not all(engine["ready"] for engine in found):
        click.get_current_context().exit(1)


def _row(engine: dict[str, Any]) -> tuple[object, ...]:
    if not engine["running"]:
        return engine["engine"], None, None, None, None, "not running"
    processes = ", ".join(str(pid) for pid in engine["node_pids"].values())
    ready = "yes" if engine["ready"] else "no"
    return engine["engine"], engine["version"], engine["address"], processes, human_bytes(engine["rss_bytes"]), ready


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _ports(given: tuple[str, ...]) -> dict[str, int]:
    ports: dict[str, int] = {}
    for text in given:
        name, _, port = text.partition("=")
        if name not in NAMES or not port.isdigit() or not 0 < int(port) < 65536:
            raise click.UsageError(f"--port {text}: give ENGINE=PORT, with one of {', '.join(NAMES)}")
        ports[name] = int(port)
    return ports


def _settings_of(records: Sequence[Record]) -> dict[str, str]:
    return {name: value for record in records for name, value in record.settings.items()}


def _end(record: Record) -> None:
    """End a keeper in order, or at once when it takes too long: its nodes go with it."""
    record.keeper.signal(signal.SIGTERM)
    if record.keeper.wait_gone(_STOP_SECONDS):
        return
    _note(f"{record.engine} did not stop in {_STOP_SECONDS:g} s: killed")
    record.keeper.signal(signal.SIGKILL)
    if not record.keeper.wait_gone(_STOP_SECONDS):
        raise AglStreamError(f"process {record.keeper.pid}, which keeps {record.engine}, cannot be killed")
    for node in record.nodes.values():
        node.wait_gone(_STOP_SECONDS)


def _keep(settings: Settings, names: Sequence[str], choice: Choice, output: str, *, background: bool) -> None:
    """Run the engines in this process until a signal; one line on stdout when all are ready."""
    from agl_stream.infra.servers.home import EnginesHome
    from agl_stream.infra.servers.keeper import Keeper
    from agl_stream.infra.servers.process import Cancelled
    from agl_stream.local.stopping import stop_on_signals

    home = EnginesHome.default(settings.engines_dir)
    with stop_on_signals() as stop, Keeper(background=background, notify=_note) as keeper:
        try:
            for folder in _folders(settings, names):
                keeper.start(
                    folder,
                    lambda others, folder=folder: choice.make(
                        folder.engine, folder.path, home, bootstrap_servers=_brokers(settings, others)
                    ),
                    stop,
                )
        except Cancelled:
            return
        records = keeper.records()
        if output == "json":
            emit_json({"engines": [record.as_dict() for record in records.values()]})
        else:
            click.echo("ready: " + "; ".join(f"{r.engine} {r.version} at {r.address}" for r in records.values()))
        keeper.watch(stop)


def _brokers(settings: Settings, others: Any) -> str:
    """The brokers that Connect is started on: those started with it, those of this folder, else the configured ones."""
    from agl_stream.infra.servers.records import EngineFolder

    record = others.get("kafka") or EngineFolder(settings.folder, "kafka").running()
    return record.address if record else settings.bootstrap_servers


def _start_in_background(settings: Settings, names: Sequence[str], choice: Choice) -> list[Record]:
    """One keeper for each engine that does not run, so that each can be stopped alone; waits until all are ready."""
    started: list[tuple[EngineFolder, subprocess.Popen[bytes]]] = []
    try:
        for folder in _folders(settings, names):
            running = folder.running()
            if running is not None:
                _note(f"{folder.engine} runs already at {running.address} (process {running.keeper.pid})")
                continue
            if folder.engine == "connect":
                _wait_ready(started)  # It wants a Kafka that answers.
            started.append((folder, _spawn_keeper(folder, settings, choice)))
        _wait_ready(started)
    except BaseException:
        for _, process in started:
            process.terminate()
        for _, process in started:
            process.wait()
        raise
    return [record for folder in _folders(settings, names) if (record := folder.running()) is not None]


def _spawn_keeper(folder: EngineFolder, settings: Settings, choice: Choice) -> subprocess.Popen[bytes]:
    options = [f"--port={name}={port}" for name, port in choice.ports.items() if name == folder.engine]
    nodes = {"kafka": choice.kafka_nodes, "cassandra": choice.cassandra_nodes}.get(folder.engine)
    if nodes is not None:
        options.append(f"--{folder.engine}-nodes={nodes}")
    command = [sys.executable, "-m", "agl_stream.cli.main", "--dir", str(settings.folder), "engines", "start"]
    folder.log_path.parent.mkdir(parents=True, exist_ok=True)
    with folder.log_path.open("wb") as log:
        return subprocess.Popen(
            [*command, folder.engine, "--background-keeper", "--output", "json", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **as_environment({"bootstrap_servers": settings.bootstrap_servers})},
        )


def _wait_ready(started: Sequence[tuple[EngineFolder, subprocess.Popen[bytes]]]) -> None:
    """Wait for the ready line of each. Raises StartFailed with the words of one that ended instead."""
    for folder, process in started:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):
            if process.stdout.closed or json.loads(process.stdout.readline())["engines"]:
                process.stdout.close()
                continue
        status = process.wait()
        said = folder.log_path.read_text(errors="replace").strip().removeprefix("agl-stream: ")
        raise StartFailed(f"{said or folder.engine + ' did not start'} (log: {folder.log_path})", status)
