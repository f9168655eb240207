"""Models for the trainer's tests, made once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from trainer_makers import small_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of hidden size 64."""
    return small_model(tmp_path_factory.mktemp("model") / "small")
