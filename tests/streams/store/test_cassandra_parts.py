"""The parts of the Cassandra store that need no Cassandra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.errors import SettingError
from agl_stream.schemas.codec import Codec
from agl_stream.settings import Settings
from agl_stream.streams.store import open_store
from agl_stream.streams.store.cassandra import cells, reading, statements
from agl_stream.streams.store.cassandra.address import parse_address
from agl_stream.streams.store.cassandra.migration import Migration, migrations
from agl_stream.streams.store.cassandra.retention import found_retention, wanted_retention
from agl_stream.streams.store.cassandra.span_buckets import BUCKET_BYTES, SpanBuckets

from ..makers import ended, llm_call

# the address


def test_an_address_names_nodes_keyspace_and_data_centres() -> None:
    found = parse_address("cassandra://a:1,b,[::1]:3/agl_1?replication=dc1:3,dc2:2&local_dc=dc1", copies=1)
    assert found.contact_points == (("a", 1), ("b", 9042), ("::1", 3))
    assert (found.keyspace, found.replication, found.local_dc) == ("agl_1", (("dc1", 3), ("dc2", 2)), "dc1")
    assert parse_address("cassandra://a/agl", copies=3).replication == (("", 3),)
    assert parse_address("cassandra://a/agl?replication=2", copies=3).replication == (("", 2),)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("cassandra://a:1", "no keyspace name"),
        ("cassandra://a:1/Agl", "no keyspace name"),
        ("cassandra://a:1/1agl", "no keyspace name"),
        ("cassandra:///agl", "no HOST:PORT"),
        ("cassandra://a:99999/agl", "no HOST:PORT"),
        ("cassandra://a:x/agl", "no HOST:PORT"),
        ("cassandra://user:pw@a:1/agl", "no HOST:PORT"),
        ("cassandra://a/agl?copies=3", "'copies' is no option"),
        ("cassandra://a/agl?replication=0", "replication=0"),
        ("cassandra://a/agl?replication=dc1:x", "replication=dc1:x"),
        ("cassandra://a/agl?replication=3,dc1:2", "without a name"),
    ],
)
def test_an_address_that_cannot_be_meant_is_told(url: str, what: str) -> None:
    with pytest.raises(SettingError, match="AGL_STREAM_STORE_URL") as told:
        parse_address(url, copies=1)
    assert what in str(told.value)


def test_without_the_driver_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "cassandra").mkdir()
    (tmp_path / "cassandra" / "__init__.py").write_text("raise ImportError('No module named cassandra')")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from agl_stream.cli.main import run; sys.exit(run())"
    done = subprocess.run(
        [sys.executable, "-c", script, "store", "plan"],
        env={"PATH": "", "AGL_STREAM_STORE_URL": "cassandra://127.0.0.1:1/agl"},
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert "pip install agl-stream[cassandra]" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unknown_kind_of_store_is_told_with_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"sqlite:///PATH or cassandra://HOST:PORT/KEYSPACE"):
        open_store(Settings(store_url="oracle://x"))


# cells and timestamps


@given(rank=st.binary(max_size=40), content=st.binary(max_size=200))
def test_a_cell_gives_back_what_it_was_given(rank: bytes, content: bytes) -> None:
    assert cells.content_of(cells.cell(rank, content)) == content


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.binary(max_size=8), st.binary(max_size=8))
def test_of_two_places_on_the_log_the_first_wins(one: int, other: int, first: bytes, second: bytes) -> None:
    by_place = cells.cell(cells.rank_by_place(one), first) > cells.cell(cells.rank_by_place(other), second)
    assert by_place == (one < other) or one == other


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_names_rank_as_they_compare(one: tuple[str, str], other: tuple[str, str]) -> None:
    if "\0" not in "".join(one + other):
        assert (cells.rank_by_names(*one) > cells.rank_by_names(*other)) == (one > other)


_LONG = st.integers(-(2**63), 2**63 - 1)


@given(base=st.integers(0, 2**53), one=st.integers(0, 2**40), other=st.integers(0, 2**40))
def test_a_greater_version_has_a_greater_timestamp(base: int, one: int, other: int) -> None:
    assert (cells.of_version(base, one) > cells.of_version(base, other)) == (one > other)


_INT = st.integers(0, 2**31 - 1)


@given(one=st.tuples(_INT, st.integers(0, 2**24 - 1)), other=st.tuples(_INT, st.integers(0, 2**24 - 1)))
def test_triplets_are_told_apart_by_revision_then_spans(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (cells.of_revision(2**51, *one) > cells.of_revision(2**51, *other)) == (one > other)


@given(base=_LONG, value=_LONG, spans=_LONG)
def test_no_event_makes_a_timestamp_that_cassandra_refuses(base: int, value: int, spans: int) -> None:
    for stamp in (cells.of_version(base, value), cells.of_time(value), cells.of_revision(base, value, spans)):
        assert -(2**63) < stamp < 2**63


def test_a_key_is_never_empty_or_too_long() -> None:
    assert cells.key("ro-1") == "ro-1"
    for odd in ("", "x" * 70_000, "\U0001f600" * 20_000):
        assert 0 < len(cells.key(odd).encode()) <= 4000
    assert cells.key("x" * 70_000) != cells.key("x" * 70_001)


def test_a_record_of_the_log_is_not_encoded_again() -> None:
    codec = Codec()
    event = llm_call("ro-1", "s", 1, [1, 2], [3])
    value = codec.encode("SpanRecorded", event)

    class FromTheLog:
        def __init__(self, body_at: int) -> None:
            self.value, self.body_at, self.event = value, body_at, event

    as_it_is = cells.body_of_record("SpanRecorded", FromTheLog(codec.decode_placed(value)[2]))
    assert as_it_is == cells.body_of_record("SpanRecorded", FromTheLog(-1)) == cells.body_of("SpanRecorded", event)
    assert cells.event_of("SpanRecorded", as_it_is) == codec.decode(value)[1]


def test_an_event_of_a_later_release_is_refused_by_name() -> None:
    body = cells.body_of("RolloutStateChanged", ended("ro-1"))
    with pytest.raises(SettingError, match=r"RolloutStateChanged in version 200.*newer version"):
        cells.event_of("RolloutStateChanged", bytes([200]) + body[1:])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_null_as_in_the_embedded_store(number: float) -> None:
    stored = cells.cell(b"", cells.body_of("RolloutStateChanged", ended("ro-1", reward=number)))
    assert reading.rollout(stored)["attempts"][-1]["reward"] is None


# statements


def test_every_write_is_a_whole_row_with_a_timestamp_of_its_own() -> None:
    columns = _columns()
    assert len(statements.WRITES) == 13
    for text in statements.WRITES.values():
        head, _, rest = text.partition(" VALUES ")
        table, named = head.removeprefix("INSERT INTO ").rstrip(")").split(" (")
        assert named.split(", ") == columns[table], f"{text} leaves columns out"
        assert rest.endswith("USING TIMESTAMP ?") and rest.count("?") == len(columns[table]) + 1


def test_nothing_deletes_updates_or_asks_before_it_writes() -> None:
    texts = [value for value in vars(statements).values() if isinstance(value, str) and value.isascii()]
    known = [text for text in texts if text.split(" ")[0] in ("SELECT", "INSERT", "UPDATE", "DELETE", "BEGIN")]
    assert len(known) > 30
    for text in known:
        assert text.startswith(("SELECT ", "INSERT ")), text
        assert " IF " not in text and "ALLOW FILTERING" not in text and " TTL" not in text, text


def test_only_the_layout_has_statements_of_its_own() -> None:
    folder = Path(statements.__file__).parent
    for file in folder.glob("*.py"):
        if file.name not in ("statements.py", "layout.py"):
            text = file.read_text()
            assert not any(f'"{verb} ' in text for verb in ("INSERT", "UPDATE", "DELETE")), file.name


def _columns() -> dict[str, list[str]]:
    """The columns of each table of the migrations."""
    found: dict[str, list[str]] = {}
    for migration in migrations():
        for statement in migration.statements():
            name, _, rest = statement.removeprefix("CREATE TABLE IF NOT EXISTS ").partition(" (")
            parts = rest.partition("PRIMARY KEY (")[0].partition(") WITH")[0]
            found[name] = [part.split()[0] for part in parts.split(",") if part.strip(" )")]
    return found


# migrations


def test_migrations_are_numbered_and_keep_their_text() -> None:
    assert [migration.number for migration in migrations()] == list(range(1, len(migrations()) + 1))
    known = {"0001_initial": "c19ebacefe8c6e5cec7514e89732af35cb451e7da7404be7c41db6904361f701"}
    assert {migration.name: migration.hash for migration in migrations()} == known, (
        "a released migration never changes: add another file instead"
    )


def test_comments_and_white_space_change_no_hash() -> None:
    one = Migration(1, "x", "-- why\nCREATE TABLE a (\n  b int PRIMARY KEY\n);\nCREATE TABLE c (d int PRIMARY KEY);")
    other = Migration(1, "x", "CREATE TABLE a ( b int PRIMARY KEY );\n-- more\nCREATE TABLE c (d int PRIMARY KEY);\n")
    assert one.hash == other.hash and len(list(one.statements())) == 2
    assert one.hash != Migration(1, "x", "CREATE TABLE a ( b text PRIMARY KEY );").hash


# retention


@pytest.mark.parametrize(
    ("days", "seconds", "window"),
    [
        (0, 0, (7, "DAYS")),
        (30, 2_592_000, (1, "DAYS")),
        (72, 6_220_800, (3, "DAYS")),
        (2, 172_800, (2, "HOURS")),
        (0.1, 8640, (6, "MINUTES")),
        (0.0001, 8, (1, "MINUTES")),
        (1e9, 630_720_000, (304, "DAYS")),
    ],
)
def test_spans_expire_in_about_two_dozen_windows(days: float, seconds: int, window: tuple[int, str]) -> None:
    wanted = wanted_retention("spans", days)
    assert (wanted.seconds, wanted.window) == (seconds, window)
    assert wanted_retention("span_buckets", days).seconds >= wanted.seconds
    compaction = {
        "class": "org.apache.cassandra.db.compaction.TimeWindowCompactionStrategy",
        "compaction_window_size": str(window[0]),
        "compaction_window_unit": window[1],
    }
    assert found_retention(seconds, compaction) == wanted


# buckets of spans


def test_a_bucket_is_followed_by_the_next_before_it_is_too_large() -> None:
    buckets = SpanBuckets()
    sizes: dict[int, int] = {}
    opened = 0
    for offset in range(100):
        bucket, opens = buckets.place(("ro", "at"), offset, BUCKET_BYTES // 10)
        sizes[bucket] = sizes.get(bucket, 0) + BUCKET_BYTES // 10
        opened += opens
    assert max(sizes.values()) <= BUCKET_BYTES
    assert opened == len(sizes) == 12
    assert list(sizes) == sorted(sizes)


def test_attempts_have_buckets_of_their_own_until_they_are_forgotten() -> None:
    buckets = SpanBuckets()
    assert buckets.place(("ro", "a"), 5, 10) == (5, True)
    assert buckets.place(("ro", "b"), 6, 10) == (6, True)
    assert buckets.place(("ro", "a"), 7, 10) == (5, False)
    buckets.forget()
    assert buckets.place(("ro", "a"), 8, 10) == (8, True)


def test_a_span_larger_than_a_bucket_has_one_to_itself() -> None:
    buckets = SpanBuckets()
    assert buckets.place(("ro", "a"), 1, 10)[0] == 1
    assert buckets.place(("ro", "a"), 2, 2 * BUCKET_BYTES) == (2, True)
    assert buckets.place(("ro", "a"), 3, 10) == (3, True)
