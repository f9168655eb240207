"""Where a fetch begins and ends: the index's answer against a plain walk over all batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agl_stream.infra.embedded.log.batch import BatchHeader, CorruptBatch, build_batch
from agl_stream.infra.embedded.log.segment import INDEX_INTERVAL_BYTES, Segment

_HEADER = BatchHeader(0, 0, 0, 2, 0, 0, 0, 1, 1, -1, -1, -1, 1)


def _fill(folder: Path, batches: list[tuple[int, int, int]]) -> tuple[Segment, list[tuple[int, int, int, int]]]:
    """A segment of (records, payload bytes, offsets missing before it), and (base, last, position, size) of each."""
    segment = Segment.create(folder, 100)
    written: list[tuple[int, int, int, int]] = []
    for records, payload_bytes, missing in batches:
        base = segment.next_offset + missing
        header = _HEADER._replace(base_offset=base, last_offset_delta=records - 1)
        data = build_batch([b"x" * payload_bytes], header)
        header = header._replace(length=len(data) - 12)
        written.append((base, base + records - 1, segment.size_bytes, len(data)))
        segment.append(data[:16], data, header, 1)
    return segment, written


def _expected(written: list[tuple[int, int, int, int]], offset: int, max_bytes: int, end_offset: int) -> list[int]:
    """Every size that would do: whole batches from the one with `offset`, one at least, within max_bytes else."""
    sizes: list[int] = []
    total = 0
    for base, last, _, size in written:
        if last < offset or base >= end_offset:
            continue
        if total and total + size > max_bytes:
            break
        total += size
        sizes.append(total)
    return sizes


@settings(max_examples=150, deadline=None)
@given(
    batches=st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from([1, 100, 4_000, INDEX_INTERVAL_BYTES, 70_000]), st.integers(0, 2)),
        min_size=1,
        max_size=25,
    ),
    data=st.data(),
)
def test_located_batches_are_whole_and_as_asked(tmp_path_factory, batches, data):
    segment, written = _fill(tmp_path_factory.mktemp("segment"), batches)
    offset = data.draw(st.integers(100, segment.next_offset))
    end_offset = data.draw(st.sampled_from([segment.next_offset, *(base for base, *_ in written)]))
    max_bytes = data.draw(st.sampled_from([1, 200, 5_000, 20_000, 100_000, 10**9]))
    position, size = segment.locate(offset, max_bytes, end_offset)
    good = _expected(written, offset, max_bytes, end_offset)
    segment.close()
    if not good:
        assert size == 0
        return
    assert position == next(at for _, last, at, _ in written if last >= offset)
    assert size in good
    assert size == good[-1] or size > max_bytes - INDEX_INTERVAL_BYTES - 70_100


def test_a_reader_who_goes_on_where_a_fetch_ended_reads_no_header(tmp_path, monkeypatch):
    segment, written = _fill(tmp_path, [(1, 300, 0)] * 2_000)
    offset, walks = 100, 0

    def walk(position: int, stop: int):
        nonlocal walks
        walks += 1
        return iter(())

    monkeypatch.setattr(segment, "_walk", walk)
    while offset < segment.next_offset:
        position, size = segment.locate(offset, 100_000, segment.next_offset)
        assert size
        offset = max(last for _, last, at, length in written if at + length <= position + size) + 1
    segment.close()
    assert walks == 0


def test_what_is_no_batch_is_not_walked_over(tmp_path):
    segment, written = _fill(tmp_path, [(1, 100, 0)] * 5)
    with (tmp_path / segment.path.name).open("r+b") as file:
        file.seek(written[2][2] + 8)
        file.write(b"\0\0\0\1")
    with pytest.raises(CorruptBatch, match="no batch at position"):
        segment.locate(104, 1, segment.next_offset)
    segment.close()
