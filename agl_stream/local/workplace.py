"""A folder to work in: a given one that is kept, or a temporary one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def workplace(kept: Path | None) -> Iterator[Path]:
    """`kept` as it is, or a new folder that is removed afterwards."""
    if kept is not None:
        yield kept.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="agl-stream-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
