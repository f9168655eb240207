"""The Connect plugin, built from its sources by Maven: Avro converter, JDBC rows, JSON lines."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from agl_stream.errors import AglStreamError

SOURCES = Path(__file__).parent / "plugin"


class PluginBuildFailed(AglStreamError):
    """Maven could not build the plugin."""


def inputs() -> tuple[Path, ...]:
    """The files that decide what is built."""
    main = SOURCES / "src" / "main"
    return (SOURCES / "pom.xml", *sorted(path for path in main.rglob("*") if path.is_file()))


def run_maven(maven: str, build_folder: Path, *arguments: str) -> None:
    """Run Maven on the plugin with everything it makes in `build_folder`; PluginBuildFailed with its words."""
    command = [maven, "-q", "-B", "-ntp", "-f", str(SOURCES / "pom.xml"), f"-Dbuild.folder={build_folder}", *arguments]
    # A pipe would be shared with daemons that a compiler may leave behind; a file is not waited for.
    with tempfile.TemporaryFile() as output:
        status = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=_environment()).returncode
        output.seek(0)
        words = output.read().decode(errors="replace")
    if status == 0:
        return
    errors = [line.strip() for line in words.splitlines() if "ERROR" in line or "FAIL" in line][:12]
    hint = ""
    if "No compiler is provided" in words or "release version 17 not supported" in words:
        hint = "a JDK of at least 17 is needed, not only a runtime (Debian: apt-get install openjdk-17-jdk-headless)"
    raise PluginBuildFailed(
        f"Maven could not build the Connect plugin in {SOURCES}: {' '.join(errors) or status}; "
        + (hint or "check that this machine reaches a Maven repository, and mirrors in ~/.m2/settings.xml")
    )


def build(maven: str, folder: Path) -> dict[str, str]:
    """Put the plugin's jars into `folder`/agl-stream and return the versions of what they bring."""
    with tempfile.TemporaryDirectory(prefix="agl-plugin-") as scratch:
        run_maven(maven, Path(scratch), "-Dmaven.test.skip=true", "package")
        target = folder / "agl-stream"
        target.mkdir(parents=True, exist_ok=True)
        for jar in sorted((Path(scratch) / "plugin").glob("*.jar")):
            (target / jar.name).write_bytes(jar.read_bytes())
    return {jar.stem.rpartition("-")[0]: jar.stem.rpartition("-")[2] for jar in sorted(target.glob("*.jar"))}


def _environment() -> dict[str, str]:
    # Progress and colours belong to a terminal, and this is none.
    return {**os.environ, "MAVEN_OPTS": f"{os.environ.get('MAVEN_OPTS', '')} -Dstyle.color=never".strip()}
