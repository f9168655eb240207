"""Random messages of any API and version, for tests of the codec and of what the broker bears."""

from __future__ import annotations

import dataclasses
import importlib
import typing
import uuid
from random import Random
from typing import Any

from kio.schema.errors import ErrorCode

_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32, "timedelta_i64": 40}


def entity_of(name: str, version: int, kind: str) -> type:
    """kio's class of a request or response."""
    prefix = "".join(part.title() for part in name.split("_"))
    return getattr(importlib.import_module(f"kio.schema.{name}.v{version}"), prefix + kind)


def _primitive(kind: str, random: Random) -> Any:
    if kind in _INTEGERS:
        bits = _INTEGERS[kind]
        return random.choice([0, -1, random.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))])
    length = random.choice([0, 1, 20, 300])
    return {
        "string": "".join(random.choices("aé漢 \x00", k=length)),
        "bytes": random.randbytes(length),
        "records": random.randbytes(length),
        "bool": random.random() < 0.5,
        "float64": random.uniform(-1e9, 1e9),
        "error_code": int(random.choice(list(ErrorCode))),
        "datetime_i64": random.randrange(4_000_000_000) * 1000,
        "uuid": uuid.UUID(bytes=random.randbytes(16)),
    }[kind]


def random_message(entity: type, random: Random) -> dict[str, Any]:
    """A random message with every field but the tagged ones."""
    hints = typing.get_type_hints(entity)
    message: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        if "tag" in field.metadata:
            continue
        item, is_array, nullable = shape_of(hints[field.name])
        kind = field.metadata.get("kafka_type")
        # kio writes a null uuid as zeros, which reads back as the zero uuid
        if nullable and kind != "uuid" and random.random() < 0.3:
            message[field.name] = None
            continue
        values = [
            random_message(item, random) if dataclasses.is_dataclass(item) else _primitive(str(kind), random)
            for _ in range(random.choice([0, 1, 3, 130]) if is_array and not dataclasses.is_dataclass(item) else 2)
        ]
        message[field.name] = values if is_array else values[0] if values else _primitive(str(kind), random)
    return message


def shape_of(hint: Any) -> tuple[Any, bool, bool]:
    """(item type, whether it is an array, whether it may be null)"""
    arguments = typing.get_args(hint)
    nullable = type(None) in arguments
    if nullable:
        hint = next(argument for argument in arguments if argument is not type(None))
    is_array = typing.get_origin(hint) is tuple
    return (typing.get_args(hint)[0] if is_array else hint), is_array, nullable
