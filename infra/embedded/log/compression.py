"""The four codecs of record batches, bounded: a small batch must not expand without limit."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

MAX_PLAIN_BYTES = 128 * 1024 * 1024
"""A batch that expands beyond this is treated as damaged."""
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_FIRST_GUESS_FACTOR = 8


class Undecompressable(ValueError):
    """The bytes are not what their codec says, or expand too far."""


def decompress(payload: memoryview, codec: int) -> bytes:
    """The plain records of a batch; raises Undecompressable."""
    if codec == 0:
        return bytes(payload)
    import cramjam

    data = bytes(payload)
    try:
        if codec == 1:
            return _expand(cramjam.gzip.decompress_into, data)
        if codec == 2:
            return _expand_snappy(data)
        if codec == 3:
            return _expand(cramjam.lz4.decompress_into, data)
        if codec == 4:
            return _expand(cramjam.zstd.decompress_into, data)
    except cramjam.DecompressionError as error:
        raise Undecompressable(f"codec {codec}: {error}") from error
    raise Undecompressable(f"unknown compression codec {codec}")


def compress(plain: bytes, codec: int) -> bytes:
    """The inverse of decompress()."""
    if codec == 0:
        return plain
    import cramjam

    by_codec: dict[int, Callable[[bytes], Any]] = {
        1: cramjam.gzip.compress,
        2: cramjam.snappy.compress_raw,
        3: cramjam.lz4.compress,
        4: cramjam.zstd.compress,
    }
    return bytes(by_codec[codec](plain))


def _expand(decompress_into: Callable[[bytes, bytearray], int], data: bytes) -> bytes:
    """Decompress into buffers of growing size: these formats do not all say how large the result is."""
    import cramjam

    room = min(MAX_PLAIN_BYTES, max(64 * 1024, _FIRST_GUESS_FACTOR * len(data)))
    while True:
        output = bytearray(room)
        try:
            return bytes(memoryview(output)[: decompress_into(data, output)])
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
        if room == MAX_PLAIN_BYTES:
            raise Undecompressable(f"expands to more than {MAX_PLAIN_BYTES} bytes")
        room = min(MAX_PLAIN_BYTES, room * 8)


def _expand_snappy(data: bytes) -> bytes:
    """Snappy as the Java and Python clients frame it (xerial blocks), or raw as librdkafka sends it."""
    if not data.startswith(_XERIAL_MAGIC):
        return _expand_snappy_block(data, MAX_PLAIN_BYTES)
    plain, at = bytearray(), _XERIAL_HEADER_BYTES
    while at + 4 <= len(data):
        (length,) = struct.unpack_from(">i", data, at)
        if length < 0 or at + 4 + length > len(data):
            raise Undecompressable("a snappy block runs past its batch")
        plain += _expand_snappy_block(data[at + 4 : at + 4 + length], MAX_PLAIN_BYTES - len(plain))
        at += 4 + length
    return bytes(plain)


def _expand_snappy_block(block: bytes, room: int) -> bytes:
    import cramjam

    if cramjam.snappy.decompress_raw_len(block) > room:
        raise Undecompressable(f"expands to more than {MAX_PLAIN_BYTES} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))
