"""What is fetched is fetched once, whole, also by two at once; what is missing is named with its remedy."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agl_stream.errors import AglStreamError, FolderNotWritable
from agl_stream.infra.servers import EnginesHome, FetchFailed, Postgres, ToolMissing, fetch
from agl_stream.infra.servers.components import COMPONENTS, KAFKA, copy_dependencies, pom_versions
from agl_stream.infra.servers.home import MAVEN_FOLDER, Component
from agl_stream.infra.servers.tools import java, postgres_folder


class Builder:
    """A component of one file that counts how often it is built."""

    def __init__(self, folder: Path) -> None:
        self.input = folder / "input"
        self.input.write_text("1")
        self.built = 0
        self.component = Component("thing", (self.input,), self.build)

    def build(self, folder: Path) -> dict[str, str]:
        self.built += 1
        (folder / "lib").mkdir()
        (folder / "lib" / "a.jar").write_text("jar")
        return {"thing": "1.0"}


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


@pytest.fixture
def home(tmp_path: Path) -> EnginesHome:
    return EnginesHome(tmp_path / "home")


def test_a_second_fetch_finds_what_the_first_built(builder: Builder, home: EnginesHome) -> None:
    told: list[str] = []
    folder = home.fetch(builder.component, told.append)
    assert home.fetch(builder.component, told.append) == folder
    assert builder.built == 1 and len(told) == 1 and "thing" in told[0]
    assert (folder / "lib" / "a.jar").read_text() == "jar"
    manifest = home.manifest(builder.component)
    assert manifest == {"versions": {"thing": "1.0"}, "files": {"lib/a.jar": 3}}


@pytest.mark.parametrize("damage", ["missing", "cut", "manifest"])
def test_what_is_damaged_is_built_again(builder: Builder, home: EnginesHome, damage: str) -> None:
    folder = home.fetch(builder.component)
    if damage == "missing":
        (folder / "lib" / "a.jar").unlink()
    elif damage == "cut":
        (folder / "lib" / "a.jar").write_text("j")
    else:
        (folder / "manifest.json").write_text("{}")
    assert home.manifest(builder.component) is None
    home.fetch(builder.component)
    assert builder.built == 2 and (folder / "lib" / "a.jar").read_text() == "jar"


def test_other_inputs_are_another_folder_and_take_nothing_away(builder: Builder, home: EnginesHome) -> None:
    old = home.fetch(builder.component)
    builder.input.write_text("2")
    new = home.fetch(builder.component)
    assert new != old and (old / "lib" / "a.jar").exists() and (new / "lib" / "a.jar").exists()


def test_a_build_that_fails_leaves_nothing_that_looks_whole(builder: Builder, home: EnginesHome) -> None:
    def fail(folder: Path) -> dict[str, str]:
        (folder / "half").write_text("h")
        raise FetchFailed("no network")

    broken = Component("thing", (builder.input,), fail)
    with pytest.raises(FetchFailed):
        home.fetch(broken)
    assert home.manifest(broken) is None
    assert sorted(path.name for path in home.path.iterdir()) == [".thing.lock"]
    home.fetch(builder.component)
    assert builder.built == 1


BUILD = """
import sys, time
from pathlib import Path
from agl_stream.infra.servers.home import Component, EnginesHome
home, log = Path(sys.argv[1]), Path(sys.argv[2])
def build(folder):
    with log.open("a") as file:
        file.write("built\\n")
    (folder / "a").write_text("a" * 100)
    if len(sys.argv) > 3:
        print("building", flush=True)
        time.sleep(600)
    time.sleep(0.3)  # Long enough for the others to come in between, if they could.
    return {}
folder = EnginesHome(home).fetch(Component("thing", (), build))
assert (folder / "a").read_text() == "a" * 100
"""


def test_processes_that_fetch_at_once_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = [subprocess.Popen([sys.executable, "-c", BUILD, str(tmp_path / "home"), str(log)]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert log.read_text() == "built\n"


def test_a_fetch_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(tmp_path / "home"), str(tmp_path / "log")]
    with subprocess.Popen([*command, "slow"], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == "building\n"
        killed.kill()
    subprocess.run(command, check=True, timeout=60)
    assert not list((tmp_path / "home").glob(".building-*"))


def test_threads_that_fetch_at_once_build_once(builder: Builder, home: EnginesHome) -> None:
    threads = [threading.Thread(target=home.fetch, args=(builder.component,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builder.built == 1


def test_the_home_is_the_given_one_or_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGL_STREAM_ENGINES_DIR", str(tmp_path / "given"))
    assert EnginesHome.default().path == tmp_path / "given"
    monkeypatch.delenv("AGL_STREAM_ENGINES_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert EnginesHome.default().path == tmp_path / "cache" / "agl-stream" / "engines"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert EnginesHome.default().path == tmp_path / ".cache" / "agl-stream" / "engines"


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path, builder: Builder) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderNotWritable, match="AGL_STREAM_ENGINES_DIR"):
        EnginesHome(tmp_path / "file" / "home").fetch(builder.component)


def test_every_pom_names_exact_versions() -> None:
    poms = sorted(MAVEN_FOLDER.glob("*.xml"))
    assert set(poms) <= {path for component in COMPONENTS for path in component.inputs}
    for pom in poms:
        versions = pom_versions(pom)
        assert versions and all(version[0].isdigit() for version in versions.values()), (pom, versions)
    assert pom_versions(MAVEN_FOLDER / "kafka.xml")["kafka_2.13"] == "4.3.1"
    assert pom_versions(MAVEN_FOLDER / "cassandra.xml")["cassandra-all"] == "5.0.9"


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with setpriv alone; tests add what they want to be there."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    path = tmp_path / "bin"
    program(path, "setpriv", "exit 1")
    monkeypatch.setenv("PATH", str(path))
    return path


def test_without_java_the_package_is_named(bare_path: Path, home: EnginesHome) -> None:
    for engine in ("kafka", "connect", "registry", "cassandra"):
        with pytest.raises(ToolMissing, match=r"java is not on PATH.*apt-get install openjdk-17-jre-headless"):
            fetch([engine], home=home)


def test_another_java_is_refused_with_its_version(bare_path: Path, home: EnginesHome) -> None:
    for version in ("1.8.0_412", "11.0.2", "25.0.1"):
        program(bare_path / version, "java", f"echo 'openjdk version \"{version}\" 2024' >&2")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", str(bare_path / version))
            with pytest.raises(ToolMissing, match=rf"is Java {version}.*17 to 23"):
                java()


def test_java_home_goes_before_the_path(bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare_path, "java", "echo 'openjdk version \"11.0.2\" 2018' >&2")
    (tmp_path / "jdk").mkdir()
    program(tmp_path / "jdk" / "bin", "java", "echo 'openjdk version \"17.0.15\" 2025' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert java() == str(tmp_path / "jdk" / "bin" / "java")


def test_a_java_that_does_not_run_is_named(bare_path: Path) -> None:
    program(bare_path / "broken", "java", "echo no memory >&2; exit 1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(bare_path / "broken"))
        with pytest.raises(ToolMissing, match=r"says 'no memory'.*openjdk-17"):
            java()


def test_without_maven_the_package_is_named(bare_path: Path, home: EnginesHome) -> None:
    program(bare_path, "java", "echo 'openjdk version \"17.0.15\" 2025' >&2")
    with pytest.raises(ToolMissing, match=r"mvn is not on PATH.*apt-get install maven"):
        fetch(["kafka"], home=home)


def test_mavens_own_words_are_passed_on(bare_path: Path, tmp_path: Path) -> None:
    program(bare_path, "java", "echo 'openjdk version \"17.0.15\" 2025' >&2")
    program(bare_path, "mvn", "echo '[ERROR] Could not transfer artifact x:y'; exit 1")
    with pytest.raises(FetchFailed, match=r"kafka\.xml.*Could not transfer artifact x:y.*settings\.xml"):
        copy_dependencies(KAFKA.inputs[0], tmp_path / "lib")


def test_without_postgresql_the_package_is_named(
    bare_path: Path, home: EnginesHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agl_stream.infra.servers.tools._POSTGRES_FOLDERS", tmp_path / "none")
    for ask in (lambda: fetch(["postgres"], home=home), lambda: Postgres(tmp_path / "pg")):
        with pytest.raises(AglStreamError, match=r"postgres is not on PATH.*apt-get install postgresql"):
            ask()


def test_debians_newest_postgresql_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("9", "15", "13"):
        (tmp_path / version).mkdir()
        program(tmp_path / version / "bin", "postgres", "exit 0")
    (tmp_path / "16").mkdir()  # Removed, with its data folder left behind.
    monkeypatch.setattr("agl_stream.infra.servers.tools._POSTGRES_FOLDERS", tmp_path)
    assert postgres_folder() == tmp_path / "15" / "bin"


def test_postgresql_needs_neither_java_nor_maven(bare_path: Path, home: EnginesHome) -> None:
    if not list(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        program(bare_path, "postgres", "exit 0")
    fetch(["postgres"], home=home)
    assert not home.path.exists()
