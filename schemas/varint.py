"""Variable-length integers: seven bits a byte, the lowest first. Avro and the Kafka protocol write them alike."""

from __future__ import annotations


def unsigned(number: int) -> bytes:
    """The varint of a number that is not negative."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def zigzag(value: int) -> int:
    """A signed 64-bit integer as an unsigned one, small where ``value`` is near 0."""
    return value << 1 ^ value >> 63
