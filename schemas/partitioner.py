"""Kafka's default partitioner (murmur2), so that a process can tell where a key lives.

The algorithm is Austin Appleby's MurmurHash2 with the seed that the Java client uses; librdkafka calls it
``murmur2_random`` (random only for null keys).
"""

from __future__ import annotations

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """32-bit hash, as an unsigned integer."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    tail = data[whole:]
    if tail:
        h = ((h ^ int.from_bytes(tail, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def murmur2_partition(key: bytes, partitions: int) -> int:
    """The partition of ``key`` among ``partitions``, as Java, librdkafka (murmur2) and aiokafka choose it."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
