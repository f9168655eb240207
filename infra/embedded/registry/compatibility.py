"""Avro compatibility levels, by Apache's own checker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)


class InvalidSchema(ValueError):
    """The text is not an Avro schema."""


def parse(text: str) -> Any:
    """The parsed schema; raises InvalidSchema."""
    import avro.errors
    import avro.schema

    try:
        return avro.schema.parse(text)
    except (avro.errors.AvroException, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvalidSchema(str(error) or type(error).__name__) from error
    except RecursionError as error:
        raise InvalidSchema("nested too deeply") from error


def canonical(text: str) -> str:
    """The same for two texts that differ in spacing and in the order of attributes only; raises InvalidSchema."""
    try:
        return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(f"not JSON: {error}") from error


def incompatibilities(level: str, candidate: str, earlier: Sequence[str]) -> list[str]:
    """Why `candidate` may not follow the schemas `earlier` (oldest first); empty when it may.

    BACKWARD: the candidate reads what the earlier ones wrote. FORWARD: the earlier ones read what the candidate
    writes. FULL: both. Without _TRANSITIVE only the last of `earlier` counts.
    """
    if level == "NONE" or not earlier:
        return []
    from avro.compatibility import ReaderWriterCompatibilityChecker

    direction, _, transitive = level.partition("_")
    new = parse(candidate)
    found: list[str] = []
    for text in earlier if transitive else earlier[-1:]:
        old = parse(text)
        for reader, writer, name in ((new, old, "BACKWARD"), (old, new, "FORWARD")):
            if direction not in (name, "FULL"):
                continue
            result = ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
            if result.compatibility.name != "compatible":
                found += [f"{name}: {message}" for message in result.messages or ("incompatible",)]
    return found
