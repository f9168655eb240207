"""What is fetched for the engines: jars by Maven, from the poms beside this file."""

from __future__ import annotations

import subprocess
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

from agl_stream.errors import AglStreamError
from agl_stream.infra.connect import plugin_build
from agl_stream.infra.servers.home import MAVEN_FOLDER, Component
from agl_stream.infra.servers.tools import java, maven

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
_POM = "{http://maven.apache.org/POM/4.0.0}"


class FetchFailed(AglStreamError):
    """Maven did not bring what was asked for."""


def copy_dependencies(pom: Path, folder: Path) -> None:
    """Put the runtime dependencies of `pom` into `folder`; FetchFailed with Maven's words."""
    folder.mkdir(parents=True, exist_ok=True)
    java()  # Maven would say less clearly that it is missing.
    command = [maven(), "-q", "-B", "-ntp", "-f", str(pom), _COPY, "-DincludeScope=runtime"]
    command += [f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line][:3]
        raise FetchFailed(
            f"Maven could not fetch the jars of {pom.name} ({' '.join(errors) or done.returncode}): "
            "check that this machine reaches a Maven repository, and mirrors in ~/.m2/settings.xml"
        )


def pom_versions(pom: Path) -> dict[str, str]:
    """Versions that a pom names, by artifact."""
    root = ElementTree.parse(pom).getroot()  # noqa: S314 - a file of this package
    properties = {"${" + p.tag.removeprefix(_POM) + "}": p.text or "" for p in root.iterfind(f"{_POM}properties/*")}
    versions: dict[str, str] = {}
    for dependency in root.iterfind(f"{_POM}dependencies/{_POM}dependency"):
        version = dependency.findtext(f"{_POM}version", "")
        versions[dependency.findtext(f"{_POM}artifactId", "")] = properties.get(version, version)
    return versions


def _jars(pom: Path) -> Callable[[Path], dict[str, str]]:
    def build(folder: Path) -> dict[str, str]:
        copy_dependencies(pom, folder / "lib")
        return pom_versions(pom)

    return build


def _build_apicurio(folder: Path) -> dict[str, str]:
    copy_dependencies(_APICURIO_POM, folder)
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        archive.unlink()
    return pom_versions(_APICURIO_POM)


def _build_plugins(folder: Path) -> dict[str, str]:
    java()
    return plugin_build.build(maven(), folder)


_KAFKA_POM = MAVEN_FOLDER / "kafka.xml"
_CASSANDRA_POM = MAVEN_FOLDER / "cassandra.xml"
_APICURIO_POM = MAVEN_FOLDER / "apicurio.xml"

KAFKA = Component("kafka", (_KAFKA_POM,), _jars(_KAFKA_POM))
"""Broker, tools and Connect worker: lib/*.jar."""

CASSANDRA = Component("cassandra", (_CASSANDRA_POM,), _jars(_CASSANDRA_POM))
"""lib/*.jar."""

APICURIO = Component("apicurio", (_APICURIO_POM,), _build_apicurio)
"""The unpacked archive; its runner jar at the top."""

CONNECT_PLUGINS = Component("connect-plugins", plugin_build.inputs(), _build_plugins)
"""A folder for each plugin, as `plugin.path` wants it."""

COMPONENTS = (KAFKA, CONNECT_PLUGINS, CASSANDRA, APICURIO)
