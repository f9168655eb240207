"""``import agl_stream as agl``: every name is there, and the import costs nothing."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import agl_stream as agl

_LIGHT = "import sys; before = set(sys.modules); import agl_stream; print(*sorted(set(sys.modules) - before))"


@pytest.mark.parametrize("name", agl.__all__)
def test_every_name_loads(name: str) -> None:
    assert getattr(agl, name) is not None
    assert name in dir(agl)


def test_the_names_shown_to_type_checkers_are_the_names_that_load() -> None:
    tree = ast.parse(Path(agl.__file__).read_text())
    shown = {
        (alias.name, node.module)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert shown == set(agl._MODULE_OF.items())
    assert sorted(agl.__all__) == sorted(agl._MODULE_OF)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="warp_drive"):
        agl.warp_drive  # noqa: B018
    assert not hasattr(agl, "warp_drive")


def test_the_import_is_light() -> None:
    loaded = subprocess.run([sys.executable, "-c", _LIGHT], capture_output=True, text=True, check=True).stdout.split()
    ours = [name for name in loaded if name.startswith("agl_stream")]
    assert ours == ["agl_stream"]
    heavy = {"pydantic", "confluent_kafka", "aiokafka", "fastavro", "torch", "openai", "faust", "opentelemetry"}
    assert not heavy & {name.partition(".")[0] for name in loaded}


def test_the_import_is_quick() -> None:
    timed = "import time; t = time.process_time(); import agl_stream; print(time.process_time() - t)"
    runs = [
        float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    assert statistics.median(runs) < 0.03
