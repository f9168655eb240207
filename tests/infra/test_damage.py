"""Bits that flip: every one is noticed and told, and none makes records vanish without an error."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.journal import DamagedFile, Journal
from agl_stream.infra.embedded.log.batch import CorruptBatch, check_batch
from agl_stream.infra.embedded.log.index import SparseIndex
from agl_stream.infra.embedded.log.partition_log import PartitionLog
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.seal import seal
from agl_stream.infra.embedded.server.housekeeping import Housekeeping
from agl_stream.infra.embedded.server.node import Node
from agl_stream.infra.embedded.testing import BrokerThread
from tests.conformance.kafka.clients.port import Partition
from tests.conformance.kafka.clients.wire import Wire
from tests.conformance.kafka.clients.wire import batch as produced
from tests.infra.logs import batch, headers, open_log, release


def flip(path: Path, at: int, bits: int = 0xFF) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= bits
    path.write_bytes(data)


def read_all_or_told(log: PartitionLog) -> tuple[list[int], list[tuple[int, int]]]:
    """Offsets that can be read, and the stretches that answer with an error; nothing else may be left out."""
    offsets: list[int] = []
    told: list[tuple[int, int]] = []
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            data = log.read(offset, 1, log.end_offset)
            assert data, f"nothing at {offset} and no error"
            header = check_batch(data)
            assert header.base_offset <= offset <= header.last_offset, f"{offset} was skipped in silence"
            offsets += range(offset, header.last_offset + 1)
            offset = header.last_offset + 1
        except CorruptBatch:
            damage = next(
                each
                for segment in log.segments
                for each in segment.damaged
                if each.first_offset <= offset < each.next_offset
            )
            told.append((damage.first_offset, damage.next_offset))
            offset = damage.next_offset
    return offsets, told


@settings(max_examples=40, deadline=None)
@given(at=st.integers(0, 10**6), bits=st.integers(1, 255), segment=st.integers(0, 2), indexed=st.booleans())
def test_a_flipped_bit_in_a_closed_segment(at, bits, segment, indexed):
    """Without a saved index the start finds it, with one the daily check does."""
    folder = Path(tempfile.mkdtemp(prefix="agl-damage-"))
    try:
        log = open_log(folder, segment_bytes="2048")
        for _ in range(60):
            log.append(batch(2, size=100))
        if indexed:
            log.flush_closed()
        end = log.end_offset
        path = log.segments[segment].path
        size = log.segments[segment].size_bytes
        release(log)
        flip(path, at, bits)
        log = open_log(folder, segment_bytes="2048")
        if indexed:
            log.check_again(log.segments[segment])
        offsets, told = read_all_or_told(log)
        missing = [number for number in range(end) if number not in set(offsets)]
        position = at % size
        harmless = 12 <= position % (size // (len(headers_of(path)) or 1)) < 16  # the leader epoch is not covered
        assert log.end_offset == end
        assert missing == [number for first, following in told for number in range(first, following)]
        assert len(missing) <= 4, "only the damaged batch is lost"
        assert told or harmless or not missing
        release(log)
        again = open_log(folder, segment_bytes="2048")
        assert read_all_or_told(again) == (offsets, told), "and it is remembered"
        release(again)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("byte", range(8))
@pytest.mark.parametrize("indexed", [True, False])
def test_an_offset_that_is_damaged_takes_no_others_along(tmp_path, byte, indexed):
    """It is not covered by the checksum: a batch that claims to lie far behind its segment is not believed."""
    log = open_log(tmp_path, segment_bytes="2048")
    for _ in range(60):
        log.append(batch(2, size=100))
    if indexed:
        log.flush_closed()
    end, path, size_bytes = log.end_offset, log.segments[1].path, len(batch(2, size=100))
    release(log)
    flip(path, 2 * size_bytes + byte, 0x40)
    log = open_log(tmp_path, segment_bytes="2048")
    if indexed:
        log.check_again(log.segments[1])
    first = log.segments[1].base_offset + 4
    assert [each[:2] for each in log.segments[1].damaged] == [(first, first + 2)]
    assert log.end_offset == end
    release(log)


def headers_of(path: Path) -> list[int]:
    from agl_stream.infra.embedded.log.batch import read_header

    data, found, at = path.read_bytes(), [], 0
    while at + 61 <= len(data):
        header = read_header(data, at)
        if header.size_bytes < 61:
            break
        found.append(at)
        at += header.size_bytes
    return found


def test_damage_before_intact_batches_at_the_end_is_set_aside(tmp_path, caplog):
    log = open_log(tmp_path)
    for _ in range(10):
        log.append(batch(size=100))
    one = log.size_bytes // 10
    release(log)
    path = log.segments[0].path
    before = path.read_bytes()
    flip(path, 6 * one + 80)
    with caplog.at_level(logging.ERROR):
        log = open_log(tmp_path)
    assert log.end_offset == 6
    (aside,) = tmp_path.glob("*.damaged")
    assert aside.read_bytes()[one:] == before[7 * one :], "what was behind the damage is kept for a person"
    assert str(aside) in caplog.text and "offset 6" in caplog.text


async def test_the_daily_check_tells_damage(tmp_path, caplog):
    node = Node(tmp_path, BrokerConfig())
    node.catalogue.create("kept", 1, {"segment.bytes": "1024", "retention.ms": "-1"})
    log = node.catalogue.partition("kept", 0)
    assert log is not None
    for _ in range(30):
        log.append(batch(size=100))
    log.flush_closed()
    os.pwrite(log.segments[1].fd, b"\xff\xff", 90)
    keeper = Housekeeping(node)
    with caplog.at_level(logging.ERROR):
        for _ in range(len(log.segments)):
            await keeper.look()
    assert "00000000000000000" in caplog.text and "cannot be read" in caplog.text
    first = log.segments[1].damaged[0].first_offset
    with pytest.raises(CorruptBatch, match=f"offsets {first} to .* go on from {first + 1}"):
        log.read(first, 1_000, log.end_offset)
    assert check_batch(log.read(first + 1, 1, log.end_offset)).base_offset == first + 1
    await node.close()


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10**6), bits=st.integers(1, 255))
@example(at=16, bits=ord('"'))
def test_a_flipped_bit_in_a_journal_is_refused(at, bits):
    folder = Path(tempfile.mkdtemp(prefix="agl-damage-"))
    try:
        entries = [["group", "topic", number, 1000 + number, -1, "", 1] for number in range(20)]
        journal = Journal(folder / "j")
        journal.append(entries)
        journal.close()
        size_bytes = journal.size_bytes
        flip(folder / "j", at, bits)
        again = Journal(folder / "j")
        try:
            found = again.load()
        except DamagedFile as error:
            assert "line" in str(error) and str(folder) in str(error)
        else:
            assert found == entries[: len(found)], "never another content"
            assert len(found) >= 19 or (at % size_bytes + 1) % 512 == 0, "no more can look torn"
    finally:
        shutil.rmtree(folder)


def test_a_journal_with_a_torn_end_goes_on(tmp_path):
    path = tmp_path / "j"
    journal = Journal(path)
    journal.append([["a"], ["b"]])
    whole = path.read_bytes()
    for keep in range(len(whole)):
        path.write_bytes(whole[:keep])
        again = Journal(path)
        found = again.load()
        assert found == [["a"], ["b"]][: whole[:keep].count(b"\n")]
        again.append([["c"]])
        again.close()
        assert Journal(path).load() == [*found, ["c"]]
    path.write_bytes(whole + bytes(30) + b"half a line\n")
    assert Journal(path).load() == [["a"], ["b"]], "a hole that a power cut left"


def look_up(log: PartitionLog, number: int) -> tuple[tuple[int, int], bytes]:
    return log.offset_for_time(1_000 + number), log.read(number, 1, 1_000)


@pytest.mark.parametrize("harm", ["cut", "flipped", "stale", "longer", "foreign"])
def test_an_index_that_does_not_fit_is_made_again(tmp_path, harm, caplog):
    log = open_log(tmp_path, segment_bytes="200000")
    for number in range(1_000):
        log.append(batch(size=300, timestamp_ms=1_000 + number))
    log.flush_closed()
    expected = [look_up(log, number) for number in range(0, 1_000, 37)]
    release(log)
    path = log.segments[0].path.with_suffix(".index")
    data = path.read_bytes()
    if harm == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif harm == "flipped":
        flip(path, len(data) // 2)
    elif harm == "foreign":
        path.write_bytes(seal(b"7"))
    elif harm == "longer":
        other = open_log(tmp_path / "other", segment_bytes="200000")
        for _ in range(1_000):
            other.append(batch(size=290))
        path.write_bytes(other.segments[0].encode_index())
    else:
        decoded = SparseIndex.decode(data)
        assert decoded is not None
        index, facts = decoded
        for number in range(len(index.positions)):
            index.positions[number] += 1
        path.write_bytes(index.encode(facts))
    again = open_log(tmp_path, segment_bytes="200000")
    assert "made again from the data" in caplog.text
    assert [look_up(again, number) for number in range(0, 1_000, 37)] == expected
    assert len(headers(again)) == 1_000


def test_times_are_looked_up_around_damage_that_is_known(tmp_path):
    log = open_log(tmp_path, segment_bytes="20000")
    for number in range(60):
        log.append(batch(size=1_000, timestamp_ms=1_000 + number))
    log.flush_closed()
    release(log)
    segment = log.segments[0].path
    segment.with_suffix(".index").unlink()
    data = bytearray(segment.read_bytes())
    third = 3 * len(batch(size=1_000))
    data[third : third + 61] = bytes(61)
    segment.write_bytes(data)
    again = open_log(tmp_path, segment_bytes="20000")
    assert again.segments[0].damaged
    assert again.offset_for_time(1_002) == (2, 1_002)
    assert again.offset_for_time(1_003) == (4, 1_004), "the record of that time is lost"
    again.delete_before(1)
    assert again.offset_of_max_timestamp() == (59, 1_059)


def test_a_time_behind_damage_that_is_news_is_answered_with_an_error(tmp_path):
    with BrokerThread(tmp_path) as broker:
        wire, partition = Wire(broker.bootstrap_servers), Partition("work")
        wire.call("create_topics", 2, topics=[{"name": "work", "num_partitions": 1, "replication_factor": 1}])
        for number in range(5):
            assert wire.produce(partition, produced(b"x", timestamp_ms=1_000 + number))["error_code"] == 0
        (segment,) = (tmp_path / "broker" / "logs" / "work-0").glob("*.log")
        size_bytes = segment.stat().st_size // 5
        with segment.open("r+b") as file:
            file.seek(2 * size_bytes)
            file.write(bytes(61))
        assert wire.list_offset(partition, 1_001)["offset"] == 1
        answer = wire.list_offset(partition, 1_004)
        assert (answer["error_code"], answer["offset"]) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert wire.list_offset(partition, -1)["offset"] == 5, "the connection lives"
        wire.close()


@pytest.mark.parametrize("name", ["start-offset", "cleaner"])
def test_small_files_that_are_damaged_are_not_guessed_at(tmp_path, name):
    log = open_log(tmp_path)
    for _ in range(5):
        log.append(batch())
    log.delete_before(3)
    log.cleaner.save(tmp_path)
    release(log)
    flip(tmp_path / name, 12)
    with pytest.raises(DamagedFile, match=name):
        open_log(tmp_path)


def test_a_snapshot_that_is_damaged_is_left_out(tmp_path, caplog):
    log = open_log(tmp_path)
    for number in range(10):
        log.append(batch(producer=(7, 0, number)))
    log.close()
    (snapshot,) = tmp_path.glob("*.snapshot")
    flip(snapshot, 30)
    again = open_log(tmp_path)
    assert "going on from an older one" in caplog.text
    assert again.append(batch(producer=(7, 0, 9))).base_offset == 9, "still known as a repetition"
