"""The demo's tasks: all sums of two digits, split once into those to train on and those held out."""

from __future__ import annotations

import json
import random
from pathlib import Path

HELD_OUT = 16


def split(seed: int = 0) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(84 training tasks, 16 held-out tasks), each ``{"question": "3+4=", "answer": "7"}``; the seed decides
    which."""
    pairs = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in range(10)]
    random.Random(seed).shuffle(pairs)
    return pairs[HELD_OUT:], pairs[:HELD_OUT]


def write_tasks(folder: str | Path, seed: int = 0) -> tuple[Path, Path]:
    """Writes both as JSON Lines into ``folder``; returns the paths of train.jsonl and held_out.jsonl."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.jsonl", folder / "held_out.jsonl"
    for path, tasks in zip(paths, split(seed), strict=True):
        path.write_text("".join(json.dumps({"input": task}) + "\n" for task in tasks))
    return paths
