"""The partition log: recovery after any cut or damage of its tail, segments, producers, reads."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agl_stream.infra.embedded.log.batch import HEADER_BYTES, CorruptBatch, build_batch, iter_records, read_header
from agl_stream.infra.embedded.log.partition_log import PartitionLog
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from tests.infra.logs import NO_PRODUCER, TRANSACTIONAL, batch, header_of, headers, open_log, record, release


def what_is_known(log: PartitionLog) -> object:
    """The producers, but for when they were last seen."""
    state = log.producers.snapshot()
    return [row[:3] + row[4:] for row in state["producers"]], state["aborted"]


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="agl-log-"))
    yield path
    shutil.rmtree(path)


def test_offsets_are_dense_and_reads_start_anywhere(folder):
    log = open_log(folder)
    assert [log.append(batch(count)).base_offset for count in (1, 5, 2)] == [0, 1, 6]
    assert log.end_offset == 8
    for offset, base in ((0, 0), (1, 1), (3, 1), (5, 1), (6, 6), (7, 6)):
        assert read_header(log.read(offset, 1, 8)).base_offset == base
    assert log.read(8, 1_000, 8) == b""


def test_reads_honour_their_limits_and_return_at_least_one_batch(folder):
    log = open_log(folder)
    sizes = [len(batch(1, size=size)) for size in (100, 100, 50_000, 100)]
    for size in (100, 100, 50_000, 100):
        log.append(batch(1, size=size))
    assert len(log.read(0, 1, 4)) == sizes[0]
    assert len(log.read(0, sizes[0] + sizes[1], 4)) == sizes[0] + sizes[1]
    assert len(log.read(0, sizes[0] + sizes[1] + 10, 4)) == sizes[0] + sizes[1]
    assert len(log.read(2, 1, 4)) == sizes[2]
    assert len(log.read(0, 10**6, 4)) == sum(sizes)
    assert len(log.read(0, 10**6, 2)) == sizes[0] + sizes[1]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3_000), min_size=1, max_size=30),
    cut=st.integers(0, 10**6),
    segment_bytes=st.sampled_from(["1024", "8192", "1000000"]),
)
def test_a_torn_tail_is_cut_and_what_lies_before_it_stays(sizes, cut, segment_bytes):
    folder = Path(tempfile.mkdtemp(prefix="agl-log-"))
    try:
        log = open_log(folder, segment_bytes=segment_bytes)
        for size in sizes:
            assert log.append(batch(size=size)).error is ErrorCode.NONE
        before = headers(log)
        active = log.segments[-1]
        closed = sum(header.base_offset < active.base_offset for header in before)
        keep = cut % (active.size_bytes + 1)
        whole, at = 0, 0
        for header in before[closed:]:
            at += header.size_bytes
            whole += at <= keep
        release(log)
        with active.path.open("rb+") as file:
            file.truncate(keep)
        again = open_log(folder, segment_bytes=segment_bytes)
        assert headers(again) == before[: closed + whole]
        assert again.append(batch()).base_offset == again.end_offset - 1
        assert len(headers(again)) == closed + whole + 1
        release(again)
    finally:
        shutil.rmtree(folder)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 12), flushed=st.integers(0, 12), damaged=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_damage_after_the_last_flush_costs_only_what_follows_it(count, flushed, damaged, flip):
    folder = Path(tempfile.mkdtemp(prefix="agl-log-"))
    try:
        log = open_log(folder)
        for number in range(count):
            if number == flushed:
                log.close()
                log = open_log(folder)
            log.append(batch(size=100))
        one = len(batch(size=100))
        first = flushed * one if flushed < count else 0
        at = first + damaged % (count * one - first)
        release(log)
        path = log.segments[-1].path
        data = bytearray(path.read_bytes())
        data[at] ^= flip
        path.write_bytes(data)
        again = open_log(folder)
        intact = headers(again)
        # The leader epoch lies outside the CRC; damage there is harmless. Everything else cuts from that batch on.
        assert len(intact) == at // one or (len(intact) == count and 12 <= at % one < 16)
        release(again)
    finally:
        shutil.rmtree(folder)


def test_appending_something_damaged_stores_nothing(folder):
    log = open_log(folder, max_message_bytes="1000")
    good = batch(3)
    flipped = bytearray(good)
    flipped[-1] ^= 1
    assert log.append(flipped).error is ErrorCode.CORRUPT_MESSAGE
    assert log.append(good[:-1]).error is ErrorCode.CORRUPT_MESSAGE
    assert log.append(good + b"x").error is ErrorCode.CORRUPT_MESSAGE
    assert log.append(good[: HEADER_BYTES - 1]).error is ErrorCode.CORRUPT_MESSAGE
    assert log.append(good[:16] + b"\1" + good[17:]).error is ErrorCode.CORRUPT_MESSAGE
    assert log.append(batch(size=1_000)).error is ErrorCode.MESSAGE_TOO_LARGE
    assert log.append(batch(attributes=0x20)).error is ErrorCode.INVALID_RECORD
    assert (log.end_offset, log.size_bytes) == (0, 0)
    assert log.append(good).base_offset == 0


def test_a_full_disk_stores_nothing_and_the_log_goes_on(folder, monkeypatch):
    import errno
    import os

    log = open_log(folder)
    log.append(batch())
    size = log.size_bytes

    def half_then_full(fd, buffers, offset):
        os.pwrite(fd, b"torn", offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", half_then_full)
        assert log.append(batch()).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.size_bytes == size == log.segments[-1].path.stat().st_size
    assert log.append(batch()).base_offset == 1
    assert len(headers(log)) == 2


@pytest.mark.parametrize("lost", ["nothing", "index", "snapshot", "both"])
def test_segments_reopen_alike_from_their_indexes_and_from_the_data(folder, lost):
    log = open_log(folder, segment_bytes="2048")
    for number in range(60):
        producer = number % 3
        log.append(
            batch(2, size=100, producer=(producer, 0, 2 * (number // 3)), attributes=TRANSACTIONAL if producer else 0)
        )
        if producer == 2 and number % 9 == 8:
            log.append_marker(2, 0, commit=number % 2 == 0)
    log.flush_closed()
    before = (headers(log), what_is_known(log), log.last_stable_offset, len(log.segments))
    release(log)
    for suffix in ("index", "snapshot"):
        if lost in (suffix, "both"):
            for path in folder.glob(f"*.{suffix}"):
                path.unlink()
    again = open_log(folder, segment_bytes="2048")
    assert (headers(again), what_is_known(again), again.last_stable_offset, len(again.segments)) == before
    assert len(again.producers.aborted) > 0


def test_a_producer_is_deduplicated_across_a_restart(folder):
    log = open_log(folder)
    for number in range(8):
        log.append(batch(2, producer=(7, 0, 2 * number)))
    release(log)
    again = open_log(folder)
    for number in range(3, 8):
        assert again.append(batch(2, producer=(7, 0, 2 * number))).base_offset == 2 * number
    assert again.append(batch(2, producer=(7, 0, 18))).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert again.append(batch(2, producer=(7, 1, 5))).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert again.append(batch(2, producer=(7, 1, 0))).base_offset == 16
    assert again.append(batch(2, producer=(7, 0, 16))).error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert again.end_offset == 18


def test_time_look_up_across_segments_and_restarts(folder):
    log = open_log(folder, segment_bytes="1024")
    for number in range(200):
        log.append(batch(timestamp_ms=1_000 + number))
    for _ in range(2):
        assert log.offset_for_time(0) == (0, 1_000)
        assert log.offset_for_time(1_123) == (123, 1_123)
        assert log.offset_for_time(1_200) == (-1, -1)
        assert log.offset_of_max_timestamp() == (199, 1_199)
        log.close()
        log = open_log(folder, segment_bytes="1024")


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=25),
    start=st.integers(0, 100),
    segment_bytes=st.sampled_from(["1024", "60000"]),
    size=st.sampled_from([20, 9_000]),
)
def test_the_largest_time_is_that_of_a_record_that_is_left(times, start, segment_bytes, size):
    """Whatever DeleteRecords has taken: whole segments, batches, or the first records of one."""
    with tempfile.TemporaryDirectory(prefix="agl-log-") as folder:
        log = open_log(Path(folder), segment_bytes=segment_bytes)
        for batch_times in times:
            records = [record(at, size, timestamp_delta=time) for at, time in enumerate(batch_times)]
            log.append(build_batch(records, header_of(len(records), NO_PRODUCER, 0, 0, max(batch_times))))
        flat = [time for batch_times in times for time in batch_times]
        log.delete_before(min(start, len(flat)))
        left = list(enumerate(flat))[start:]
        expected = max(left, key=lambda each: each[1], default=(-1, -1))
        assert log.offset_of_max_timestamp() == expected
        release(log)


def test_the_start_offset_survives_and_frees_segments(folder):
    log = open_log(folder, segment_bytes="1024")
    for _ in range(100):
        log.append(batch())
    segments = len(log.segments)
    log.delete_before(55)
    assert len(log.segments) < segments
    release(log)
    again = open_log(folder, segment_bytes="1024")
    assert (again.start_offset, again.end_offset) == (55, 100)


def test_records_that_are_no_records_are_corrupt():
    header = read_header(batch())._replace(record_count=1)
    for payload in (b"\xff" * 30, b"\x10", b""):
        data = batch()[:HEADER_BYTES] + payload
        with pytest.raises(CorruptBatch):
            list(iter_records(data, header._replace(length=len(data) - 12)))
    bomb = batch(attributes=2)[:HEADER_BYTES] + b"\xff\xff\xff\xff\x0f"
    with pytest.raises(CorruptBatch):
        list(iter_records(bomb, read_header(bomb)._replace(length=len(bomb) - 12)))
