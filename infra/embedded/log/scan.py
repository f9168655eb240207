"""Reading a segment's file from front to back, trusting nothing."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.log.batch import CRC_FROM, HEADER_BYTES, BatchHeader, read_header
from agl_stream.infra.embedded.log.pace import Pace

_MAGIC = b"\0\0\0\0\2"
"""Leader epoch 0 and magic 2: bytes 12 to 16 of every batch that this broker stores."""
_MAGIC_AT = 12
_PLAUSIBLE_GAP = 2**31


def intact_batches(
    view: memoryview, at: int, next_offset: int, *, dense: bool, below: int | None = None
) -> Iterator[tuple[BatchHeader, int]]:
    """(header, position) of the batches from `at` on, up to the first that is torn or damaged.

    `below` is where the next segment begins, if there is one. `dense`: no offset is missing. That is so unless the
    segment was compacted, and it has to be checked because the offset is not covered by the CRC.
    """
    while True:
        header = intact_batch(view, at, next_offset)
        if header is None or (dense and header.base_offset != next_offset):
            return
        if below is not None and header.last_offset >= below:
            return
        yield header, at
        next_offset = header.last_offset + 1
        at += header.size_bytes


def intact_batch(view: memoryview, at: int, least_offset: int) -> BatchHeader | None:
    """The batch at `at`, None unless every byte of it is there and its checksum is right."""
    if at + HEADER_BYTES > len(view):
        return None
    header = read_header(view, at)
    end = at + header.size_bytes
    if header.magic != 2 or header.size_bytes < HEADER_BYTES or end > len(view):
        return None
    if header.base_offset < least_offset or header.last_offset_delta < 0:
        return None
    with view[at + CRC_FROM : end] as covered:
        return header if crc32c(covered) == header.crc else None


def find_intact(
    mapped: mmap.mmap, view: memoryview, at: int, least_offset: int, below: int | None = None
) -> tuple[BatchHeader, int] | None:
    """The first intact batch behind damage at `at`, None when only a torn end is there.

    Offsets of `below` and more, where the next segment begins, are themselves damaged: the CRC does not cover them.
    """
    limit = least_offset + _PLAUSIBLE_GAP if below is None else below
    while True:
        hit = mapped.find(_MAGIC, at + _MAGIC_AT)
        if hit < 0:
            return None
        at = hit - _MAGIC_AT
        header = intact_batch(view, at, least_offset)
        if header is not None and header.last_offset < limit:
            return header, at
        at += 1


def is_intact(path: Path, size_bytes: int, base_offset: int) -> bool:
    """Whether every batch of a closed segment is as it was written. Blocks, in small pieces; safe in a thread."""
    if not size_bytes:
        return True
    pace = Pace()
    at = 0
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size_bytes, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
    ):
        for header, position in intact_batches(view, 0, base_offset, dense=False):
            at = position + header.size_bytes
            pace()
    return at == size_bytes


def set_aside(path: Path, view: memoryview, position: int) -> Path:
    """Copy what lies behind `position` beside the file before it is cut, for a person to look at."""
    aside = path.with_name(f"{path.stem}-{position}.damaged")
    disk.write_whole(aside, bytes(view[position:]))
    return aside
