"""Partition logs without a broker: batches as producers send them, and what can be read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agl_stream.infra.embedded.log.batch import BatchHeader, build_batch, check_batch, iter_records
from agl_stream.infra.embedded.log.partition_log import PartitionLog
from agl_stream.infra.embedded.log.topic_config import DEFAULTS, TopicConfig
from agl_stream.schemas import varint

TRANSACTIONAL = 0x10
NO_PRODUCER = (-1, -1, -1)


def _varint(value: int) -> bytes:
    return varint.unsigned(varint.zigzag(value))


def record(
    number: int, size: int = 20, *, key: bytes | None = None, value: bytes | None = b"", timestamp_delta: int = 0
) -> bytes:
    """One encoded record with offset delta `number`; its value is `size` bytes unless another is given."""
    if value == b"":
        value = b"v" * size
    body = b"\0" + _varint(timestamp_delta) + _varint(number)
    for part in (key, value):
        body += _varint(-1) if part is None else _varint(len(part)) + part
    body += _varint(0)
    return _varint(len(body)) + body


def header_of(
    count: int, producer: tuple[int, int, int], timestamp_ms: int, attributes: int, newest_ms: int | None = None
) -> BatchHeader:
    newest_ms = timestamp_ms if newest_ms is None else newest_ms
    return BatchHeader(0, 0, 0, 2, 0, attributes, count - 1, timestamp_ms, newest_ms, *producer, count)


def batch(
    count: int = 1,
    *,
    size: int = 20,
    producer: tuple[int, int, int] = NO_PRODUCER,
    timestamp_ms: int = 1_000,
    attributes: int = 0,
) -> bytes:
    """A batch of `count` records without keys."""
    records = [record(number, size) for number in range(count)]
    return build_batch(records, header_of(count, producer, timestamp_ms, attributes))


def keyed(
    pairs: Sequence[tuple[bytes | None, bytes | None]],
    *,
    producer: tuple[int, int, int] = NO_PRODUCER,
    timestamp_ms: int = 1_000,
    attributes: int = 0,
) -> bytes:
    """A batch of (key, value) records; a value of None is a tombstone."""
    records = [record(number, key=key, value=value) for number, (key, value) in enumerate(pairs)]
    return build_batch(records, header_of(len(pairs), producer, timestamp_ms, attributes))


def config(**overrides: str) -> TopicConfig:
    return TopicConfig.parse({key.replace("_", "."): value for key, value in overrides.items()}, DEFAULTS)


def open_log(folder: Path, **overrides: str) -> PartitionLog:
    return PartitionLog("topic", 0, folder, config(**overrides))


def headers(log: PartitionLog) -> list[BatchHeader]:
    """Headers of everything readable, read in steps of one batch."""
    found: list[BatchHeader] = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, 1, log.end_offset)
        if not data:
            break
        header = check_batch(data)
        found.append(header)
        offset = header.last_offset + 1
    return found


def contents(log: PartitionLog) -> list[tuple[int, bytes | None, bool]]:
    """(offset, key, whether it has a value) of every data record."""
    found: list[tuple[int, bytes | None, bool]] = []
    for header in headers(log):
        if not header.is_control:
            data = log.read(header.base_offset, 1, log.end_offset)
            found += [(each.offset, each.key, each.has_value) for each in iter_records(data, header)]
    return found


def release(log: PartitionLog) -> None:
    """Let go of the files as a killed process does: without a checkpoint."""
    for segment in log.segments:
        segment.close()
