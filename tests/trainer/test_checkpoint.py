"""Checkpoints: complete ones win, damaged ones are passed over, old ones go."""

from __future__ import annotations

from pathlib import Path

import pytest

from agl_stream.trainer.checkpoint import CheckpointFolder, LearnerState
from agl_stream.trainer.window import GroupWindow


def state(step: int) -> LearnerState:
    return LearnerState(
        learner_id="learner",
        run_id="run",
        step=step,
        version=step + 1,
        offsets=[("triplets", 0, step * 10), ("triplets", 1, 3)],
        window=GroupWindow().state(),
        resources={"resources_id": "policy", "version": step + 1},
        manifest={"step": step},
        settings={"seed": 0},
        history=[{"step": step}],
    )


def save_model(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"weights")
    (folder / "nested").mkdir()
    (folder / "nested" / "more.bin").write_bytes(b"more")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path)
    assert checkpoints.newest() is None
    checkpoints.write(state(1), save_model)
    found = checkpoints.newest()
    assert found is not None
    assert found[0] == state(1)
    assert (found[1] / "nested" / "more.bin").read_bytes() == b"more"


def test_the_newest_is_read_and_the_last_two_are_kept(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path)
    for step in (9, 10, 11):
        checkpoints.write(state(step), save_model)
    found = checkpoints.newest()
    assert found is not None
    assert found[0].step == 11
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000010", "step-00000011"]


@pytest.mark.parametrize("damage", ["missing", "short", "no list", "bad state"])
def test_a_damaged_one_is_passed_over_with_a_warning(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = CheckpointFolder(tmp_path)
    checkpoints.write(state(1), save_model)
    newest = checkpoints.write(state(2), save_model)
    if damage == "missing":
        (newest / "model" / "weights.bin").unlink()
    elif damage == "short":
        (newest / "model" / "weights.bin").write_bytes(b"we")
    elif damage == "no list":
        (newest / "contents.json").unlink()
    else:
        (newest / "learner.json").write_text('{"step": 2}')
    found = checkpoints.newest()
    assert found is not None
    assert found[0].step == 1
    assert "step-00000002 is not usable" in caplog.text


def test_a_half_written_one_is_ignored_and_written_anew(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path)
    checkpoints.write(state(1), save_model)

    def fails(folder: Path) -> None:
        (folder / "weights.bin").write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.write(state(2), fails)
    found = checkpoints.newest()
    assert found is not None
    assert found[0].step == 1
    checkpoints.write(state(2), save_model)
    found = checkpoints.newest()
    assert found is not None
    assert found[0].step == 2
