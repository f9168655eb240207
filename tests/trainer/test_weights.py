"""Versions on disk: whole or absent, verified, pruned without taking away what is served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from trainer_makers import small_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from agl_stream.trainer.weights import WeightsFolder, WeightsUnusable, digest_of, load_tensors, verify


@pytest.fixture
def tensors(model_dir: Path) -> dict[str, torch.Tensor]:
    return load_tensors(model_dir)


def test_a_version_loads_in_transformers_and_equals_what_was_written(
    tmp_path: Path, model_dir: Path, tensors: dict[str, torch.Tensor]
) -> None:
    ref = WeightsFolder(tmp_path).write(3, tensors, model_dir)
    folder = verify(ref)
    assert folder == tmp_path / "v000003"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in tensors.items())
    assert AutoTokenizer.from_pretrained(folder).encode("1+2=") == AutoTokenizer.from_pretrained(model_dir).encode(
        "1+2="
    )


def test_a_tied_head_is_written_out(tmp_path: Path) -> None:
    tied = small_model(tmp_path / "tied", tied=True)
    tensors = load_tensors(tied)
    assert "lm_head.weight" not in tensors
    folder = verify(WeightsFolder(tmp_path / "weights").write(1, tensors, tied))
    written = load_tensors(folder)
    assert torch.equal(written["lm_head.weight"], written["model.embed_tokens.weight"])
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False


def test_the_digest_is_repeatable_and_a_repeated_write_changes_nothing(
    tmp_path: Path, model_dir: Path, tensors: dict[str, torch.Tensor]
) -> None:
    folder = WeightsFolder(tmp_path)
    first = folder.write(1, tensors, model_dir)
    before = (folder.path(1) / "model.safetensors").stat()
    assert folder.write(1, tensors, model_dir) == first
    assert (folder.path(1) / "model.safetensors").stat().st_ino == before.st_ino
    changed = {name: tensor + 1 for name, tensor in tensors.items()}
    assert folder.write(1, changed, model_dir)["sha256"] != first["sha256"]
    assert folder.versions() == [1]


def test_damage_is_found(tmp_path: Path, model_dir: Path, tensors: dict[str, torch.Tensor]) -> None:
    folder = WeightsFolder(tmp_path)
    ref = folder.write(1, tensors, model_dir)
    file = folder.path(1) / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-4] + b"\0\0\0\1")
    with pytest.raises(WeightsUnusable, match=r"have digest .* announced was"):
        verify(ref)
    file.write_bytes(content)
    assert verify(ref)
    (folder.path(1) / "extra.json").write_text("{}")
    with pytest.raises(WeightsUnusable, match="digest"):
        verify(ref)
    file.unlink()
    with pytest.raises(WeightsUnusable, match=r"have no model\.safetensors"):
        verify(ref)


def test_other_places_and_formats_are_refused_by_name() -> None:
    with pytest.raises(WeightsUnusable, match="only file addresses"):
        verify({"uri": "s3://bucket/v1", "sha256": "", "format": "safetensors"})
    with pytest.raises(WeightsUnusable, match="only safetensors"):
        verify({"uri": "file:///x", "sha256": "", "format": "pickle"})


def test_an_interrupted_write_leaves_no_version(
    tmp_path: Path, model_dir: Path, tensors: dict[str, torch.Tensor]
) -> None:
    folder = WeightsFolder(tmp_path)
    with pytest.raises(FileNotFoundError):
        folder.write(1, tensors, tmp_path / "nowhere")
    assert folder.versions() == []
    assert [entry.name for entry in tmp_path.iterdir()] == [".v000001.partial"]
    ref = folder.write(1, tensors, model_dir)
    assert digest_of(folder.path(1)) == ref["sha256"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["v000001"]


def test_pruning_keeps_the_newest_and_the_served(
    tmp_path: Path, model_dir: Path, tensors: dict[str, torch.Tensor]
) -> None:
    folder = WeightsFolder(tmp_path)
    for version in range(1, 7):
        folder.write(version, tensors, model_dir)
    assert folder.prune(2, spare={2, 6}) == [1, 3, 4]
    assert folder.versions() == [2, 5, 6]
    assert folder.prune(2) == [2]
