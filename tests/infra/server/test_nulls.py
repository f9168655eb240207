"""Null in every place of every request: refused as malformed where the protocol has none, handled where it has."""

from __future__ import annotations

import dataclasses
import logging
import typing
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.protocol.apis import APIS, decode_request
from agl_stream.infra.embedded.protocol.wire import MalformedMessage
from agl_stream.infra.embedded.testing import BrokerThread
from tests.infra.messages import entity_of, random_message, shape_of
from tests.infra.test_hostile import header

SPOKEN = [(api.name, version) for api in APIS.values() for version in range(api.first, api.last + 1)]
AFTERWARDS = 99
_NULLABLE_ON_THE_WIRE = ("string", "bytes", "records")


def places(entity: type, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool]]:
    """(path, whether null is allowed there) of every field that has a way to say null."""
    hints = typing.get_type_hints(entity)
    for field in dataclasses.fields(entity):
        if "tag" in field.metadata:
            continue
        item, is_array, nullable = shape_of(hints[field.name])
        here = (*path, field.name)
        nested = dataclasses.is_dataclass(item)
        if is_array or field.metadata.get("kafka_type") in _NULLABLE_ON_THE_WIRE or (nested and nullable):
            yield here, nullable
        if nested:
            yield from places(typing.cast(type, item), here)


def with_null(message: dict[str, Any], path: tuple[str, ...]) -> bool:
    """Put a null there, in every element of the arrays on the way; False when the way ends before."""
    if len(path) == 1:
        message[path[0]] = None
        return True
    below = message[path[0]]
    inner = below if isinstance(below, list) else [] if below is None else [below]
    return any([with_null(each, path[1:]) for each in inner])


def named(value: Any) -> Any:
    """The message with names and numbers that exist, so that handlers get beyond the first look-up."""
    if isinstance(value, dict):
        return {name: b"" if name == "records" else named(each) for name, each in value.items()}
    if isinstance(value, list):
        return [named(each) for each in value[:2]]
    if isinstance(value, str):
        return "known"
    return 0 if isinstance(value, int) and not isinstance(value, bool) else value


def messages(name: str, version: int) -> Iterator[tuple[tuple[str, ...], bool, dict[str, Any]]]:
    """A request with one null for each place, with known and with random values around it."""
    entity = entity_of(name, version, "Request")
    for path, allowed in places(entity):
        for seed in range(6):
            message = random_message(entity, Random(seed))
            if seed % 2:
                message = named(message)
            if with_null(message, path):
                yield path, allowed, message


@pytest.fixture(scope="module")
def broker_with_topic():
    """Short waits, so that joins and long polls are answered soon."""
    config = BrokerConfig(auto_create_topics=True, group_initial_rebalance_delay_ms=0)
    with BrokerThread(config=config) as broker:
        yield broker


@pytest.mark.parametrize(("name", "version"), SPOKEN)
def test_null_is_malformed_where_the_protocol_has_none(name, version, request_frame):
    for path, allowed, message in messages(name, version):
        frame = memoryview(request_frame(name, version, message))
        if allowed:
            decode_request(frame)
        else:
            with pytest.raises(MalformedMessage, match="null"):
                decode_request(frame)
                pytest.fail(f"{name} {version}: null was read at {'.'.join(path)}")


@pytest.mark.parametrize("name", [api.name for api in APIS.values()])
def test_no_handler_fails_for_a_null(name, request_frame, connect, broker_with_topic, caplog):
    """A failed handler closes the connection and says so: none may, whatever else is asked."""
    api = next(api for api in APIS.values() if api.name == name)
    with caplog.at_level(logging.WARNING):
        connection = connect(broker_with_topic.bootstrap_servers)
        for version in range(api.first, api.last + 1):
            for path, allowed, message in messages(name, version):
                if not allowed:
                    continue
                message |= {"max_wait": 0} if "max_wait" in message else {}
                connection.send_frame(request_frame(name, version, message))
                connection.send_frame(header(18, 0, AFTERWARDS))
                answer = connection.read_frame()
                while answer is not None and answer[:4] != AFTERWARDS.to_bytes(4, "big"):
                    answer = connection.read_frame()
                assert answer is not None, f"null at {'.'.join(path)}: {caplog.messages[-1:]}"
