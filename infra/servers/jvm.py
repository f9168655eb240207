"""The command line of a Java server, and the class-data archive that halves its start."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from agl_stream.infra.servers.tools import java, java_version

# One collector thread and the quick compiler only: a server that lives for minutes beside seven others on a few
# cores starts in half the time and takes two thirds of the memory; it gains nothing from the slow compiler.
SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms64m", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError")


def archive_path(component_folder: Path, server: str) -> Path:
    """Where the class-data archive of `server` is kept: one for each Java, which takes only its own."""
    path = java()
    which = hashlib.sha256(f"{Path(path).resolve()} {java_version(path)}".encode()).hexdigest()[:8]
    return component_folder / "archives" / f"{server}-{which}.jsa"


def java_command(
    component_folder: Path, server: str, target: Sequence[str], *, heap_mb: int, options: Sequence[str] = ()
) -> list[str]:
    """`java OPTIONS TARGET`, with the archive of `server` when there is one."""
    archive = archive_path(component_folder, server)
    # An archive that does not fit is ignored and costs only time.
    sharing = [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return [java(), *SMALL, f"-Xmx{heap_mb}m", *(sharing if archive.exists() else []), *options, *target]


def class_path(folder: Path) -> str:
    """All jars of `folder`, in an order that does not change: an archive is for one class path."""
    return ":".join(str(jar) for jar in sorted(folder.glob("*.jar")))
