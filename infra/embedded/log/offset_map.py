"""The latest offset of each key, in memory that is known beforehand."""

from __future__ import annotations

import struct
from hashlib import blake2b

_SLOT = struct.Struct(">16sq")
_FIRST_SLOTS = 1024
_FULLEST = 0.7


class OffsetMap:
    """Keys as 16-byte hashes in one table of 24 bytes a slot, open addressing.

    Two keys with one hash would count as the same: among 10^9 keys that has a chance of about 10^-21. The table
    doubles when it is 70 % full, so at most 69 bytes a key are in use.
    """

    def __init__(self) -> None:
        self._slots = _FIRST_SLOTS
        self._table = bytearray(self._slots * _SLOT.size)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        return len(self._table)

    def put(self, key: bytes, offset: int) -> None:
        """Remember `offset` for `key`; offsets of one key come in rising order."""
        digest = blake2b(key, digest_size=16).digest()
        at, known = self._find(digest)
        _SLOT.pack_into(self._table, at, digest, offset + 1)
        if not known:
            self._count += 1
            if self._count > _FULLEST * self._slots:
                self._grow()

    def latest(self, key: bytes) -> int:
        """The last offset put for `key`, -1 when there is none."""
        return self._find(blake2b(key, digest_size=16).digest())[1] - 1

    def _find(self, digest: bytes) -> tuple[int, int]:
        """(position of the key's slot or of the free one for it, offset + 1 or 0)."""
        slot = int.from_bytes(digest[:8], "big") % self._slots
        while True:
            at = slot * _SLOT.size
            found, stored = _SLOT.unpack_from(self._table, at)
            if not stored or found == digest:
                return at, stored
            slot = (slot + 1) % self._slots

    def _grow(self) -> None:
        old = self._table
        self._slots *= 2
        self._table = bytearray(self._slots * _SLOT.size)
        for digest, stored in _SLOT.iter_unpack(old):
            if stored:
                _SLOT.pack_into(self._table, self._find(digest)[0], digest, stored)
