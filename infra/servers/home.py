"""Where the engines' jars are kept, and how they come there: once for a machine, whole, and safe to ask for twice."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agl_stream.errors import FolderNotWritable

HERE = Path(__file__).parent
MAVEN_FOLDER = HERE / "maven"

_MANIFEST = "manifest.json"
_STAMP_LENGTH = 12


@dataclass(frozen=True)
class Component:
    """Something to fetch. `build(folder)` fills an empty folder and returns the versions of what it put there.

    `inputs` are the files that decide what is built: another content is another folder, so that two versions
    of this package can share a home and none of them takes files away from a running server.
    """

    name: str
    inputs: tuple[Path, ...]
    build: Callable[[Path], dict[str, str]]

    def stamp(self) -> str:
        """Changes when an input changes."""
        digest = hashlib.sha256()
        for path in self.inputs:
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)}\n".encode() + content)
        return digest.hexdigest()[:_STAMP_LENGTH]


class EnginesHome:
    """A folder of components, each in NAME-STAMP below it with a manifest of its files."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()

    @classmethod
    def default(cls, given: str = "") -> EnginesHome:
        """`given`, else AGL_STREAM_ENGINES_DIR, else the user's cache folder."""
        given = given or os.environ.get("AGL_STREAM_ENGINES_DIR", "")
        if given:
            return cls(Path(given))
        # The specification of XDG_CACHE_HOME has relative paths ignored.
        cache = os.environ.get("XDG_CACHE_HOME", "")
        return cls((Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "agl-stream" / "engines")

    def folder(self, component: Component) -> Path:
        """Where `component` is, or will be once fetched."""
        return self.path / f"{component.name}-{component.stamp()}"

    def manifest(self, component: Component) -> dict[str, Any] | None:
        """What is kept of `component`: its `versions` and its `files` with sizes; None when not there or not whole."""
        folder = self.folder(component)
        try:
            manifest = json.loads((folder / _MANIFEST).read_text())
            whole = all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
        except (OSError, ValueError, KeyError, AttributeError):
            return None
        return manifest if whole else None

    def version(self, component: Component, artifact: str) -> str:
        """Version of a fetched artifact."""
        manifest = self.manifest(component)
        return manifest["versions"].get(artifact, "") if manifest else ""

    def fetch(self, component: Component, notify: Callable[[str], None] = lambda line: None) -> Path:
        """Folder of `component`, built now unless it is there and whole.

        A second process that asks meanwhile waits. `notify` gets a line before something is built. Raises what
        the component's build raises; FolderNotWritable when the home cannot be written.
        """
        folder = self.folder(component)
        if self.manifest(component) is not None:
            return folder
        with self.locked(component.name):
            if self.manifest(component) is not None:
                return folder
            notify(f"fetching {component.name} into {folder}")
            self._build(component, folder)
        return folder

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock `name` of this home; the kernel gives it back however this process ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / f".{name}.lock").open("a")
        except OSError as error:
            raise FolderNotWritable(
                f"the engines' folder {self.path} cannot be used ({error.strerror}): "
                "choose another with AGL_STREAM_ENGINES_DIR, or correct its permissions"
            ) from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _build(self, component: Component, folder: Path) -> None:
        # Only the holder of the lock builds, so what lies in this place was left by one that died.
        draft = self.path / f".building-{component.name}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            versions = component.build(draft)
            files = {
                str(path.relative_to(draft)): path.stat().st_size for path in sorted(draft.rglob("*")) if path.is_file()
            }
            (draft / _MANIFEST).write_text(json.dumps({"versions": versions, "files": files}, indent=1) + "\n")
            shutil.rmtree(folder, ignore_errors=True)  # There, but not whole.
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
