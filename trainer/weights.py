"""Model versions as folders of safetensors: written whole or not at all, verified when read.

``<root>/v000012/`` holds model.safetensors, config.json and the tokenizer files of version 12: a folder that
transformers, vLLM and verl load as it is. It appears by one rename, after every byte has reached the disk, so a
reader never sees half a version; and the event that announces it carries the digest, so a reader never trusts one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl_stream.errors import AglStreamError

if TYPE_CHECKING:
    import torch

MODEL_FILE = "model.safetensors"
_BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class WeightsUnusable(AglStreamError):
    """A weights folder is missing, incomplete, or not what its digest says."""


class WeightsFolder:
    """The versions of one model below ``root``. One writer; any number of readers."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def path(self, version: int) -> Path:
        """Where ``version`` is or will be."""
        return self.root / f"v{version:06d}"

    def versions(self) -> list[int]:
        """Complete versions, oldest first."""
        found = (re.fullmatch(r"v(\d{6,})", entry.name) for entry in _entries(self.root))
        return sorted(int(match.group(1)) for match in found if match)

    def write(self, version: int, tensors: Mapping[str, torch.Tensor], like: str | Path) -> dict[str, str]:
        """Writes ``tensors`` as ``version``, config and tokenizer copied from ``like``; returns its WeightsRef.

        The head is written out even when the model ties it to its embedding: an inference server that keeps a packed
        copy of a tied head goes on with the old one, silently. A version that is there already is replaced only when
        its content differs, so a repeated step leaves it alone.
        """
        from safetensors.torch import save_file

        self.root.mkdir(parents=True, exist_ok=True)
        partial = self.root / f".v{version:06d}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        complete = {name: tensor.contiguous() for name, tensor in tensors.items()}
        if _HEAD not in complete and _EMBEDDING in complete:
            complete[_HEAD] = complete[_EMBEDDING].clone()
        save_file(complete, str(partial / MODEL_FILE), metadata={"format": "pt"})
        copy_beside(like, partial)
        sync_tree(partial)
        digest, target = digest_of(partial), self.path(version)
        if target.exists() and digest_of(target) == digest:
            shutil.rmtree(partial)
        else:
            replace_folder(partial, target)
        return {"uri": target.as_uri(), "sha256": digest, "format": "safetensors"}

    def prune(self, keep: int, *, spare: Collection[int] = ()) -> list[int]:
        """Removes all but the newest ``keep`` versions and those in ``spare`` (the ones being served)."""
        versions = self.versions()
        doomed = [v for v in versions[: max(0, len(versions) - keep)] if v not in spare]
        for version in doomed:
            trash = self.root / f".v{version:06d}.trash"
            self.path(version).replace(trash)
            shutil.rmtree(trash, ignore_errors=True)
        return doomed


def copy_beside(source: str | Path, target: Path) -> None:
    """Copies config and tokenizer files; the config says that the head is untied."""
    for name in _BESIDE:
        if (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, target / name)
    config_file = target / "config.json"
    config: dict[str, Any] = json.loads(config_file.read_text())
    if config.get("tie_word_embeddings", True):
        config["tie_word_embeddings"] = False
        config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def digest_of(folder: str | Path) -> str:
    """SHA-256 over the sorted (name, SHA-256) pairs of a folder's files, each pair a line ``name digest``."""
    lines: list[str] = []
    for file in sorted(entry for entry in Path(folder).iterdir() if entry.is_file()):
        with file.open("rb") as stream:
            lines.append(f"{file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def verify(ref: Mapping[str, str]) -> Path:
    """The folder a WeightsRef names, once its digest has been checked.

    Raises WeightsUnusable naming the folder for a missing or changed one, an address that is no file, or a format
    that is not safetensors.
    """
    if ref.get("format", "safetensors") != "safetensors":
        raise WeightsUnusable(f"weights {ref['uri']} are {ref['format']}; only safetensors are read")
    folder = local_path(ref["uri"])
    if not (folder / MODEL_FILE).is_file():
        raise WeightsUnusable(f"weights {folder} have no {MODEL_FILE}; they were pruned, or are on another machine")
    found = digest_of(folder)
    if found != ref["sha256"]:
        raise WeightsUnusable(f"weights {folder} have digest {found[:12]}, announced was {ref['sha256'][:12]}")
    return folder


def local_path(uri: str) -> Path:
    """The path a ``file://`` address or a plain path names."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        raise WeightsUnusable(f"weights {uri}: only file addresses are read; put them on a shared file system")
    return Path(unquote(parts.path) if parts.scheme else uri)


def load_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a version, on CPU."""
    from safetensors.torch import load_file

    return load_file(str(folder / MODEL_FILE))


def sync_tree(folder: Path) -> None:
    """Flushes every file below ``folder``, and the folders, to the disk."""
    for base, _, files in os.walk(folder):
        for path in (*(Path(base, name) for name in files), Path(base)):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def replace_folder(source: Path, target: Path) -> None:
    """Moves ``source`` to ``target`` by rename; what was at ``target`` is removed."""
    if target.exists():
        trash = target.with_name(f".{target.name}.trash")
        shutil.rmtree(trash, ignore_errors=True)
        target.replace(trash)
        source.replace(target)
        shutil.rmtree(trash, ignore_errors=True)
    else:
        source.replace(target)
    parent = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
