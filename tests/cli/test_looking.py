"""status, show and tail over the log alone: only a broker and a registry, no state store, no streams."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from agl_stream.cli.log_reader import LogReader
from agl_stream.producers.event_producer import EventProducer
from agl_stream.settings import Settings
from tests.cli.conftest import Agl, parsed
from tests.cli.scene import ROLLOUT, tell


def test_status_tells_the_whole_system(agl: Agl, producer: EventProducer, settings: Settings) -> None:
    tell(producer)
    commit_first_span(settings)
    (found,) = parsed(agl("status", "--output", "json"))
    assert found["source"] == "log"
    assert found["rollouts"] == {"succeeded": 1, "queuing": 1, "running": 1}
    assert found["queue"] == 1
    assert [(a["rollout_id"], a["status"], a["worker_id"]) for a in found["attempts"]] == [
        ("ro-runs", "running", "runner-1")
    ]
    assert found["rejects"] == {"undecodable": 2, "not_framed": 1}
    group = settings.group("sink")
    behind = sum(high for _, high in bounds(settings, "spans").values()) - 1
    assert found["lag"] == {group: behind}
    assert found["lag_by_topic"] == {group: {"spans": behind}}
    (worker,) = found["workers"]
    assert (worker["worker_id"], worker["slots_free"], worker["overdue"]) == ("runner-1", 1, False)
    assert [(r["resources_id"], r["version"]) for r in found["resources"]] == [("policy", 4)]
    assert found["steps"] == {"learner": 5}


def test_status_in_words(agl: Agl, producer: EventProducer) -> None:
    tell(producer)
    text = agl("status").stdout
    assert "1 queuing, 1 running, 1 succeeded; 1 waiting" in text
    assert "policy@4" in text and "not_framed" in text and "runner-1" in text


def test_status_before_anything_happened(agl: Agl, with_topics: Settings) -> None:
    (found,) = parsed(agl("status", "--output", "json"))
    assert (found["rollouts"], found["lag"], found["rejects"], found["workers"]) == ({}, {}, {}, [])
    assert agl("status").exit_code == 0


def test_status_without_topics(agl: Agl) -> None:
    (found,) = parsed(agl("status", "--output", "json"))
    assert found["rollouts"] == {}


def test_show_tells_the_story_once_and_in_order(agl: Agl, producer: EventProducer) -> None:
    tell(producer)
    (found,) = parsed(agl("show", ROLLOUT, "--output", "json"))
    assert (found["rollout"]["version"], found["rollout"]["status"]) == (4, "succeeded")
    assert [span["sequence_id"] for span in found["spans"]] == [1, 2, 3], "each span once, foreign partitions too"
    assert found["spans"][0]["prompt_token_ids"] == [1, 2, 3]
    assert found["spans"][0]["response_logprobs"] == [-0.5, -0.25]
    assert found["triplets"][0]["triplets"][0]["response_token_ids"] == [7, 8]
    assert [(t["step"], t["outcome"]) for t in found["trainings"]] == [(5, "trained")]

    lines = agl("show", ROLLOUT).stdout.splitlines()
    told = [
        "requested (train)",
        "attempt 1 dispatched",
        "attempt 1 failed (agent_error: ValueError: no)",
        "llm_call chat 4.2 ms 3 -> 2 tokens [7 8] version 3",
        "llm_call chat",
        "reward 1",
        "attempt 2 succeeded, reward 1",
        "joined, revision 0: 1 triplet(s), reward 1",
        "trained in step 5 of learner (version 3 -> 4, 1 rows)",
    ]
    places = []
    for phrase in told:
        start = places[-1] + 1 if places else 0
        places.append(next(i for i in range(start, len(lines)) if phrase in lines[i]))


def test_show_an_unknown_rollout(agl: Agl, with_topics: Settings) -> None:
    result = agl("show", "ro-nobody")
    assert result.exit_code == 1
    assert "ro-nobody is not known" in str(result.exception)


def test_tail_decodes_and_keeps_to_its_limits(agl: Agl, producer: EventProducer) -> None:
    tell(producer)
    records = parsed(agl("tail", "spans", "--output", "json"))
    assert len(records) == 5
    assert {record["event_type"] for record in records} == {"SpanRecorded"}
    assert {record["key"] for record in records} == {ROLLOUT, "ro-other", None}
    calls = [r["event"] for r in records if r["event"]["kind"] == "llm_call"]
    assert all(call["response_token_ids"] == [7, 8] for call in calls)
    assert len(parsed(agl("tail", "spans", "--limit", "2", "--output", "json"))) == 2
    assert parsed(agl("tail", "spans", "--from", "end", "--no-follow", "--output", "json")) == []
    in_one = parsed(agl("tail", "spans", "--partition", "0", "--output", "json"))
    assert in_one == [record for record in records if record["partition"] == 0]
    last = parsed(agl("tail", "spans", "--from", "-1", "--output", "json"))
    assert sorted((r["partition"], r["offset"]) for r in last) == sorted(
        {r["partition"]: (r["partition"], r["offset"]) for r in records}.values()
    )


@pytest.mark.parametrize("topic", ["spans", "rollouts", "triplets", "batches", "resources", "workers", "rejects"])
def test_tail_in_words_is_one_line_a_record(agl: Agl, producer: EventProducer, topic: str) -> None:
    tell(producer)
    result = agl("tail", topic)
    assert result.exit_code == 0, result.exception
    assert len(result.stdout.splitlines()) == len(parsed(agl("tail", topic, "--output", "json")))


def test_tail_shows_what_does_not_decode(agl: Agl, producer: EventProducer, settings: Settings) -> None:
    tell(producer)
    foreign = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for value in (b"\xff\xfe no framing", b"\x00\x00\x01\x86\x9f unknown id", b"", None):
        foreign.produce(settings.topic("spans"), value=value, key=b"\x80\x81", partition=2)
    foreign.flush()
    records = parsed(agl("tail", "spans", "--partition", "2", "--output", "json"))
    bad = [record for record in records if record["key"] == "base64:gIE="]
    assert [record["error"]["reason_code"] for record in bad[:3]] == ["not_framed", "unknown_schema", "not_framed"]
    assert bad[3]["event"] is None
    assert "!! unknown_schema" in agl("tail", "spans", "--partition", "2").stdout


def test_tail_takes_the_name_on_the_wire_and_refuses_nonsense(agl: Agl, with_topics: Settings) -> None:
    assert agl("tail", with_topics.topic("triplets")).exit_code == 0
    wrong = agl("tail", "triplet")
    assert wrong.exit_code == 2 and "did you mean triplets?" in wrong.stderr
    assert agl("tail", "spans", "--from", "yesterday").exit_code == 2
    assert agl("tail", "spans", "--partition", "77").exit_code == 2


def test_tail_names_the_missing_topic(agl: Agl) -> None:
    result = agl("tail", "spans")
    assert result.exit_code == 1
    assert "agl-stream topics apply" in str(result.exception)


def test_tail_follows(producer: EventProducer, settings: Settings) -> None:
    shared = ["--bootstrap-servers", settings.bootstrap_servers, "--registry-url", settings.registry_url]
    shared += ["--namespace", settings.namespace]
    verb = ["tail", "batches", "--follow", "--limit", "3", "--output", "json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "agl_stream.cli.main", *shared, *verb],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    tell(producer)
    first = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [record["offset"] for record in first] == [0, 1]
    assert process.poll() is None, "it waits for more"
    tell(producer)
    assert json.loads(process.stdout.readline())["offset"] == 2
    assert process.wait(30) == 0


def test_reading_ends_with_an_error_when_the_broker_goes(settings: Settings, tmp_path: Path) -> None:
    from dataclasses import replace

    from agl_stream.cli.topics import apply
    from agl_stream.errors import EngineUnreachable
    from agl_stream.infra.embedded.testing import BrokerThread

    broker = BrokerThread(tmp_path / "gone")
    with broker:
        lonely = replace(settings, bootstrap_servers=broker.bootstrap_servers, connect_timeout_seconds=1.0)
        apply(lonely)
        foreign = Producer({"bootstrap.servers": lonely.bootstrap_servers})
        for number in range(1500):  # More than a client reads ahead.
            foreign.produce(lonely.topic("spans"), value=b"x" * 20_000, key=str(number))
        foreign.flush()
        reader = LogReader(lonely)
        records = reader.read_to_end("spans")
        next(records)
    started = time.monotonic()
    with pytest.raises(EngineUnreachable, match=r"no records of .*spans come any more"):
        for _ in records:
            pass
    assert time.monotonic() - started < 30
    reader.follow({"spans": {0: 0}})
    assert reader.poll(0.1) == [], "a follower waits for the broker to come back"


def commit_first_span(settings: Settings) -> None:
    """As a sink that has handled one record of spans and none of the other partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": settings.group("sink"),
            "enable.auto.commit": False,
        }
    )
    from confluent_kafka import TopicPartition

    starts = bounds(settings, "spans")
    full = next(partition for partition, (_, high) in starts.items() if high > 0)
    places = [TopicPartition(settings.topic("spans"), p, 1 if p == full else 0) for p in starts]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def bounds(settings: Settings, topic: str) -> dict[int, tuple[int, int]]:
    with LogReader(settings) as reader:
        return reader.bounds(topic)


def test_lag_is_found_again_after_a_restart_of_the_broker(settings: Settings, tmp_path: Path) -> None:
    from dataclasses import replace

    from agl_stream.cli.topics import apply
    from agl_stream.errors import EngineUnreachable
    from agl_stream.infra.embedded.testing import BrokerThread

    with BrokerThread(tmp_path / "again") as broker:
        own = replace(settings, bootstrap_servers=broker.bootstrap_servers, connect_timeout_seconds=2.0)
        apply(own)
        foreign = Producer({"bootstrap.servers": own.bootstrap_servers})
        foreign.produce(own.topic("spans"), value=b"x", partition=0)
        foreign.produce(own.topic("spans"), value=b"x", partition=0)
        foreign.flush()
        commit_first_span(own)
        reader = LogReader(own)
        expected = {own.group("sink"): {"spans": 1}}
        assert reader.group_lag(reader.groups()) == expected
    with BrokerThread(tmp_path / "again", port=int(own.bootstrap_servers.partition(":")[2])):
        deadline = time.monotonic() + 30
        while True:
            try:
                assert reader.group_lag([own.group("sink")]) == expected
                break
            except EngineUnreachable:
                assert time.monotonic() < deadline
