"""The programs of this machine that the engines need: found, checked, or named in one sentence."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from agl_stream.errors import AglStreamError

OLDEST_JAVA, NEWEST_JAVA = 17, 23
"""Kafka 4 needs 17; Cassandra 5.0 installs a SecurityManager, which Java 24 no longer has."""

_POSTGRES_FOLDERS = Path("/usr/lib/postgresql")


class ToolMissing(AglStreamError):
    """A program that an engine needs is not installed, or not in a version that will do."""


def find_tool(name: str, package: str, purpose: str) -> str:
    """Path of the program `name`; ToolMissing names the Debian package that brings it."""
    path = shutil.which(name)
    if path is None:
        raise ToolMissing(f"{name} is not on PATH: {purpose}; install it (Debian: apt-get install {package})")
    return path


def java() -> str:
    """Path of a Java that runs the engines: that of JAVA_HOME, or the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home) / "bin" / "java", os.X_OK):
        path = str(Path(home) / "bin" / "java")
    else:
        path = find_tool(
            "java", "openjdk-17-jre-headless", "Apache Kafka, Connect, Cassandra and Apicurio run on Java 17"
        )
    version = java_version(path)
    major = int(version.partition(".")[0])
    if not OLDEST_JAVA <= major <= NEWEST_JAVA:
        raise ToolMissing(
            f"{path} is Java {version}: the engines run on Java {OLDEST_JAVA} to {NEWEST_JAVA} (17 is proven); install "
            "it (Debian: apt-get install openjdk-17-jre-headless) and point JAVA_HOME at it"
        )
    return path


@functools.cache
def java_version(path: str) -> str:
    """Version of a Java, as 17.0.15; ToolMissing when it does not tell."""
    done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60)
    found = re.search(r'version "(\d+[\d._]*)', done.stderr)
    if done.returncode != 0 or found is None:
        raise ToolMissing(f"{path} -version says {done.stderr.strip()[:200]!r}: install openjdk-17-jre-headless")
    return found[1]


def maven() -> str:
    """Path of Maven, which fetches the engines' jars."""
    return find_tool("mvn", "maven", "Maven fetches the jars of the engines")


def setpriv() -> str:
    """Path of setpriv, which ties a server's life to its parent's."""
    return find_tool(
        "setpriv", "util-linux", "servers are started by it, so that they end with the process that needs them"
    )


def postgres_folder() -> Path:
    """Folder with PostgreSQL's programs: Debian's newest, or that of the `postgres` on PATH."""
    versions = sorted(
        (int(folder.name), folder / "bin") for folder in _POSTGRES_FOLDERS.glob("*") if folder.name.isdigit()
    )
    for _, folder in reversed(versions):
        if os.access(folder / "postgres", os.X_OK):
            return folder
    return (
        Path(find_tool("postgres", "postgresql", "the SQL sinks of Kafka Connect write to PostgreSQL")).resolve().parent
    )


def postgres_version(folder: Path) -> str:
    """Version of the PostgreSQL in `folder`, as 15.12."""
    done = subprocess.run([str(folder / "postgres"), "--version"], capture_output=True, text=True, timeout=60)
    found = re.search(r"(\d+[\d.]*)", done.stdout)
    return found[1] if found else ""
