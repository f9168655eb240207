"""Checkpoints of a learner: model, optimiser, random state, window, offsets and the manifest, in one folder.

The folder is the learner's only memory. It is written before anything of its step is announced and appears by
one rename; so after any crash the newest complete folder says exactly what has been trained, from where to read
on, and which announcements may still be missing (they are repeated, under the same ids).
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agl_stream.errors import AglStreamError
from agl_stream.trainer.weights import replace_folder, sync_tree

log = logging.getLogger(__name__)

STATE_FILE = "learner.json"
CONTENTS_FILE = "contents.json"
MODEL_FOLDER = "model"


class CheckpointMismatch(AglStreamError):
    """A checkpoint belongs to another run than the one that wants to go on from it."""


@dataclass
class LearnerState:
    """What a learner knows after a step, as JSON values.

    ``offsets``: [topic, partition, next offset] of all input read so far. ``manifest`` and ``resources``: the events
    that announce this step (no manifest for step 0). ``settings``: what must not change between restarts.
    ``history``: one small record a step, of the first and the latest steps; ``totals``: sums over all of them;
    ``validation``: one record a validation, as for history.
    """

    learner_id: str
    run_id: str | None
    step: int
    version: int
    offsets: list[tuple[str, int, int]]
    window: dict[str, Any]
    resources: dict[str, Any]
    manifest: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    validation: list[dict[str, Any]] = field(default_factory=list)
    totals: dict[str, Any] = field(default_factory=dict)


class CheckpointFolder:
    """The checkpoints of one learner below ``root``; the newest ``keep`` are kept."""

    def __init__(self, root: str | Path, *, keep: int = 2) -> None:
        self.root = Path(root)
        self.keep = keep

    def write(self, state: LearnerState, save_model: Callable[[Path], None]) -> Path:
        """Writes ``state`` and what ``save_model`` puts into the folder it is given; durable on return."""
        self.root.mkdir(parents=True, exist_ok=True)
        partial = self.root / f".step-{state.step:08d}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        (partial / MODEL_FOLDER).mkdir(parents=True)
        save_model(partial / MODEL_FOLDER)
        (partial / STATE_FILE).write_text(json.dumps(asdict(state), allow_nan=False))
        (partial / CONTENTS_FILE).write_text(json.dumps(_sizes(partial)))
        sync_tree(partial)
        target = self.root / f"step-{state.step:08d}"
        replace_folder(partial, target)
        for old in self._steps()[self.keep :]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def newest(self) -> tuple[LearnerState, Path] | None:
        """State and model folder of the newest complete checkpoint, None when there is none.

        One that is damaged is passed over with a warning that names it.
        """
        for folder in self._steps():
            try:
                expected = json.loads((folder / CONTENTS_FILE).read_text())
                stored = json.loads((folder / STATE_FILE).read_text())
                if expected != _sizes(folder):
                    raise ValueError("files are missing or cut short")
                stored["offsets"] = [tuple(offset) for offset in stored["offsets"]]
                return LearnerState(**stored), folder / MODEL_FOLDER
            except (OSError, ValueError, TypeError, KeyError) as error:
                log.warning("checkpoint %s is not usable and passed over: %s", folder, error)
        return None

    def _steps(self) -> list[Path]:
        if not self.root.is_dir():
            return []
        found = [entry for entry in self.root.iterdir() if re.fullmatch(r"step-\d{8,}", entry.name)]
        return sorted(found, key=lambda entry: int(entry.name.removeprefix("step-")), reverse=True)


def _sizes(folder: Path) -> dict[str, int]:
    """Size of every file below ``folder`` but the list itself."""
    sizes: dict[str, int] = {}
    for base, _, files in os.walk(folder):
        for name in files:
            path = Path(base, name)
            relative = path.relative_to(folder).as_posix()
            if relative != CONTENTS_FILE:
                sizes[relative] = path.stat().st_size
    return dict(sorted(sizes.items()))
