"""The ready sinks: connector configurations in sinks/*.json, with places for what differs between installations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from agl_stream.errors import UsageError

FOLDER = Path(__file__).parent / "sinks"
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def names() -> list[str]:
    """Names of the ready sinks."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def template(name: str) -> dict[str, str]:
    """A sink's configuration with its {{places}}; UsageError for an unknown one."""
    if name not in names():
        raise UsageError(f"there is no sink {name!r}; there are {', '.join(names())} (`agl-stream connect list`)")
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def render(name: str, values: Mapping[str, str]) -> dict[str, str]:
    """A sink's configuration as Connect takes it, each {{place}} filled from `values`."""
    return {key: _PLACE.sub(lambda place: values[place[1]], text) for key, text in template(name).items()}


def places(name: str) -> set[str]:
    """Names of the places that a sink's configuration has."""
    return {place for text in template(name).values() for place in _PLACE.findall(text)}


def connector_name(namespace: str, sink: str) -> str:
    """What a sink is called on a Connect cluster that other namespaces may use as well."""
    return f"{namespace}-{sink}"
