"""Record batches, magic 2: the header, validation, control batches, and the records inside when they must be seen.

Layout: Kafka's protocol documentation, "Record Batch". The CRC covers everything from the attributes on, so
the base offset and the leader epoch, which a broker assigns, are outside of it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from agl_stream.infra.embedded.log.compression import Undecompressable, compress, decompress
from agl_stream.schemas import varint

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_PREFIX_BYTES = 12
"""Base offset and length: what precedes the bytes counted by the length."""
CRC_FROM = 21
POSITION = struct.Struct(">qi11xi")
"""(base offset, batch length, last offset delta): what a walk over batches needs."""

TRANSACTIONAL = 0x10
CONTROL = 0x20
CODEC_MASK = 0x07

MAX_RECORDS = 250_000
"""Of one batch. A few kilobytes can hold millions of tiny records, compressed, and each costs time to be looked at."""

Buffer = bytes | bytearray | memoryview


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.length + LENGTH_PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequences wrap to 0 after 2^31 - 1."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


class CorruptBatch(ValueError):
    """The bytes are not one whole, undamaged record batch."""


def read_header(data: Buffer, at: int = 0) -> BatchHeader:
    """Header at `at`; raises CorruptBatch when fewer than 61 bytes are left."""
    try:
        return BatchHeader._make(HEADER.unpack_from(data, at))
    except struct.error as error:
        raise CorruptBatch("shorter than a batch header") from error


def check_batch(data: Buffer) -> BatchHeader:
    """Header of `data`, which must be exactly one intact batch; raises CorruptBatch otherwise."""
    header = read_header(data)
    if header.magic != 2:
        raise CorruptBatch(f"message format {header.magic}, only 2 is stored")
    if header.size_bytes != len(data):
        raise CorruptBatch(f"the header says {header.size_bytes} bytes, {len(data)} came")
    if header.record_count < 1 or header.last_offset_delta < header.record_count - 1:
        raise CorruptBatch(f"{header.record_count} records with a last offset delta of {header.last_offset_delta}")
    if crc32c(memoryview(data)[CRC_FROM:]) != header.crc:
        raise CorruptBatch("CRC mismatch")
    return header


def why_not_produced(header: BatchHeader) -> str | None:
    """What no producer may send although it is an intact batch; None when there is nothing against it."""
    if header.is_control:
        return "a control batch"
    if header.producer_id >= 0 and header.base_sequence < 0:
        return "a producer id without a sequence"
    if header.last_offset_delta != header.record_count - 1:
        return f"{header.record_count} records over {header.last_offset_delta + 1} offsets"
    if header.record_count > MAX_RECORDS:
        return f"{header.record_count} records in one batch, at most {MAX_RECORDS} are taken"
    return None


def assigned_prefix(base_offset: int, length: int) -> bytes:
    """The 16 bytes that the broker writes over a produced batch: base offset, length, leader epoch 0."""
    return struct.pack(">qii", base_offset, length, 0)


def control_batch(producer_id: int, producer_epoch: int, commit: bool) -> bytes:
    """A transaction marker: one record whose key says commit or abort."""
    key, value = struct.pack(">hh", 0, 1 if commit else 0), struct.pack(">hi", 0, 0)
    record = b"\0\0\0" + _varint(len(key)) + key + _varint(len(value)) + value + b"\0"
    now_ms = time.time_ns() // 1_000_000
    return build_batch(
        [_varint(len(record)) + record],
        BatchHeader(0, 0, 0, 2, 0, TRANSACTIONAL | CONTROL, 0, now_ms, now_ms, producer_id, producer_epoch, -1, 1),
    )


def build_batch(records: list[bytes], like: BatchHeader) -> bytes:
    """A batch of these encoded records; everything but length, CRC and count is taken from `like`."""
    payload = compress(b"".join(records), like.attributes & CODEC_MASK)
    body = struct.pack(
        ">hiqqqhii",
        like.attributes,
        like.last_offset_delta,
        like.base_timestamp,
        like.max_timestamp,
        like.producer_id,
        like.producer_epoch,
        like.base_sequence,
        len(records),
    )
    body += payload
    return struct.pack(">qiibI", like.base_offset, len(body) + 9, 0, 2, crc32c(body)) + body


def is_commit_marker(data: Buffer) -> bool:
    """Whether a control batch commits (True) or aborts; `data` starts at the batch."""
    record = next(iter_records(data, read_header(data)))
    if record.key is None or len(record.key) < 4:
        raise CorruptBatch("a control record without a type")
    return struct.unpack_from(">h", record.key, 2)[0] == 1


class StoredRecord(NamedTuple):
    """One record of a batch; `encoded` is its exact bytes, length prefix included."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    has_value: bool
    encoded: bytes


def iter_records(data: Buffer, header: BatchHeader) -> Iterator[StoredRecord]:
    """The records of the batch at the start of `data`, decompressed; raises CorruptBatch when they cannot be read."""
    payload = memoryview(data)[HEADER_BYTES : header.size_bytes]
    try:
        plain = decompress(payload, header.attributes & CODEC_MASK)
        at = 0
        for _ in range(header.record_count):
            start = at
            length, at = _read_varint(plain, at)
            end = at + length
            timestamp_delta, field = _read_varint(plain, at + 1)
            offset_delta, field = _read_varint(plain, field)
            key_length, field = _read_varint(plain, field)
            key = None
            if key_length >= 0:
                key = plain[field : field + key_length]
                field += key_length
            value_length, _ = _read_varint(plain, field)
            if end > len(plain) or end <= start:
                raise CorruptBatch("a record runs past its batch")
            yield StoredRecord(
                header.base_offset + offset_delta,
                header.base_timestamp + timestamp_delta,
                key,
                value_length >= 0,
                plain[start:end],
            )
            at = end
    except IndexError as error:
        raise CorruptBatch("a record runs past its batch") from error
    except Undecompressable as error:
        raise CorruptBatch(str(error)) from error


def _varint(value: int) -> bytes:
    """Zig-zag varint, as records use it."""
    return varint.unsigned(varint.zigzag(value))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise CorruptBatch("a number of more than 64 bits")
