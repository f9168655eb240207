"""Checksums of small files and journal lines, so that damage is noticed and not read."""

from __future__ import annotations

from crc32c import crc32c

SEAL_BYTES = 9
"""Eight hexadecimal digits of CRC-32C and a space."""


def seal(payload: bytes) -> bytes:
    """`payload` behind its checksum."""
    return b"%08x " % crc32c(payload) + payload


def unseal(data: bytes) -> bytes | None:
    """What was sealed, None when it is not that any more."""
    payload = data[SEAL_BYTES:]
    return payload if data[:SEAL_BYTES] == b"%08x " % crc32c(payload) else None
