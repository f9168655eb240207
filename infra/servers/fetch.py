"""Everything an engine needs, brought before it is started: its jars, and the class-data archive of its server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from agl_stream.infra.servers.apicurio import Apicurio
from agl_stream.infra.servers.cassandra import Cassandra
from agl_stream.infra.servers.components import APICURIO, CASSANDRA, CONNECT_PLUGINS, KAFKA
from agl_stream.infra.servers.connect import Connect
from agl_stream.infra.servers.engine import Engine, temporary_folder
from agl_stream.infra.servers.home import Component, EnginesHome
from agl_stream.infra.servers.jvm import archive_path
from agl_stream.infra.servers.kafka import Kafka
from agl_stream.infra.servers.tools import java, postgres_folder, setpriv

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Needs:
    """What has to be fetched for an engine; `archive` names the server that is trained, in the first component."""

    components: tuple[Component, ...] = ()
    archive: str | None = None


NEEDS: dict[str, Needs] = {
    "kafka": Needs((KAFKA,), "kafka"),
    "connect": Needs((KAFKA, CONNECT_PLUGINS), "connect"),
    "registry": Needs((APICURIO,), "apicurio"),
    "cassandra": Needs((CASSANDRA,), "cassandra"),
    "postgres": Needs(),
}
"""Engine -> what it needs."""


def fetch(engines: Iterable[str], *, home: EnginesHome | None = None, notify: Notify = lambda line: None) -> None:
    """Have all that `engines` need, fetching what is not there; nothing to do costs milliseconds.

    Blocks for a minute or two the first time. Two processes may do it at once. Raises ToolMissing, FetchFailed.
    """
    home = home or EnginesHome.default()
    for engine in engines:
        needs = NEEDS[engine]
        setpriv()
        if engine == "postgres":
            postgres_folder()
        if needs.components:
            java()
        folders = [home.fetch(component, notify) for component in needs.components]
        if needs.archive:
            _train(needs.archive, folders[0], home, notify)


def _train(server: str, folder: Path, home: EnginesHome, notify: Notify) -> None:
    """Have the class-data archive of a server: run it once and let Java keep what it loaded.

    An archive that Java could not write is no error: the server starts without, only slower.
    """
    target = archive_path(folder, server)
    if target.exists():
        return
    with home.locked(f"{folder.name}-{server}-archive"):
        if target.exists():
            return
        notify(f"training {server} for quick starts ({target})")
        target.parent.mkdir(exist_ok=True)
        draft = target.with_suffix(".new")
        work, remove = temporary_folder("train")
        try:
            if server == "connect":
                with Kafka(work / "kafka", home=home) as kafka:
                    _run_once(Connect(work / "connect", kafka.bootstrap_servers, home=home), draft)
            else:
                made = {"kafka": Kafka, "apicurio": Apicurio, "cassandra": Cassandra}[server]
                _run_once(made(work / server, home=home), draft)
            if draft.exists():
                draft.replace(target)
            else:
                notify(f"Java kept no archive of {server}: it starts without")
        finally:
            draft.unlink(missing_ok=True)
            remove()


def _run_once(engine: Engine, archive: Path) -> None:
    (node,) = engine.nodes
    at = node.argv.index(java()) + 1
    node.argv[at:at] = [f"-XX:ArchiveClassesAtExit={archive}"]
    with engine:
        pass
