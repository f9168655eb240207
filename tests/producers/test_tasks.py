"""Tasks: checked by name, idempotent by id, acknowledged, read from files line by line."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.errors import UsageError
from agl_stream.producers import json_text
from agl_stream.producers.task import TaskError, request_of, task_of_line
from agl_stream.producers.task_file import TaskFile
from agl_stream.producers.task_producer import TaskProducer, siblings
from agl_stream.schemas.blobs import BlobStore
from agl_stream.types import RolloutConfig


@pytest.fixture(scope="module")
def tasks(settings, producer) -> TaskProducer:
    return TaskProducer(settings, producer=producer)


@dataclasses.dataclass
class Question:
    text: str


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"mode": "training"}, "mode: 'training' is none of train, val, test"),
        ({"rollout_id": "a/b"}, "rollout_id: 'a/b' is no id"),
        ({"rollout_id": ""}, "rollout_id:"),
        ({"group_id": 7}, "group_id: 7 is no id"),
        ({"group_size": 0}, "group_size: 0 is no whole number from 1"),
        ({"group_size": True}, "group_size: True"),
        ({"resources_version": 1}, "resources_version: needs resources_id"),
        ({"resources_id": "rs", "resources_version": -1}, "resources_version: -1"),
        ({"metadata": [1]}, "metadata:"),
        ({"metadata": {"a": object()}}, "metadata: a object has no JSON form"),
        ({"config": {"max_attempts": 0}}, "config.max_attempts: 0"),
        ({"config": {"timeout_seconds": 0}}, "config.timeout_seconds: 0 is no positive number"),
        ({"config": {"timeout_seconds": float("inf")}}, "config.timeout_seconds: inf"),
        ({"config": {"backoff_seconds": -1}}, "config.backoff_seconds: -1 is no number"),
        ({"config": {"retry_condition": ["cancelled"]}}, "config.retry_condition: 'cancelled' is none of"),
        ({"config": {"retry_condition": "failed"}}, "config.retry_condition: 'failed' is no list"),
        ({"config": {"attempts": 2}}, "config.attempts: unknown; known are timeout_seconds"),
        ({"input": {1, 2}}, "input: a set has no JSON form"),
        ({"input": float("nan")}, "input:"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], says: str):
    with pytest.raises(TaskError) as caught:
        request_of(**{"input": 1, **fields})
    assert str(caught.value).startswith(says)


def test_a_whole_request():
    config = RolloutConfig(timeout_seconds=3, max_attempts=2, retry_condition=["unresponsive", "failed"])
    event = request_of(Question("1+1?"), rollout_id="ro-1", mode="train", config=config, metadata={"k": "ü"})
    assert event == request_of(Question("1+1?"), rollout_id="ro-1", mode="train", config=config, metadata={"k": "ü"})
    assert json.loads(event["input"]) == {"text": "1+1?"}
    assert json.loads(event["metadata"]) == {"k": "ü"}
    assert event["config"] == {
        "timeout_seconds": 3.0,
        "unresponsive_seconds": None,
        "max_attempts": 2,
        "retry_condition": ["failed", "unresponsive"],
        "backoff_seconds": 0.0,
    }
    assert request_of(None)["rollout_id"] != request_of(None)["rollout_id"]


def test_enqueued_means_on_the_log(tasks, log):
    first = tasks.enqueue({"q": 1}, mode="val", run_id="run-1")
    event = log.events("rollout-requests", first)[0]
    assert (json.loads(event["input"]), event["mode"], event["run_id"]) == ({"q": 1}, "val", "run-1")
    second = asyncio.run(tasks.aenqueue([1]))
    assert json.loads(log.events("rollout-requests", second)[0]["input"]) == [1]
    many = tasks.enqueue_many([{"input": n, "rollout_id": f"ro-many-{n}"} for n in range(3)])
    assert many == ["ro-many-0", "ro-many-1", "ro-many-2"]
    tasks.control(first, "cancel", reason="enough")
    control = log.events("controls", first)[0]
    assert (control["action"], control["reason"]) == ("cancel", "enough")
    with pytest.raises(UsageError, match="none of cancel"):
        tasks.control(first, "explode")


def test_nothing_is_sent_unless_all_are_valid(tasks, log):
    with pytest.raises(TaskError):
        tasks.enqueue_many([{"input": 1, "rollout_id": "ro-half"}, {"input": 1, "mode": "x"}])
    tasks.enqueue(2, rollout_id="ro-whole")
    found = log.records("rollout-requests", lambda all_: any(key == "ro-whole" for _, key, _ in all_))
    assert "ro-half" not in {key for _, key, _ in found}


def test_the_same_id_is_the_same_event(tasks, log):
    tasks.enqueue(1, rollout_id="ro-same")
    tasks.enqueue(1, rollout_id="ro-same")
    events = log.events("rollout-requests", "ro-same", 2)
    assert len({event["event_id"] for event in events}) == 1


def test_a_group_shares_id_and_size(tasks, log):
    ids = tasks.enqueue_group("q", 3, mode="train")
    events = [log.events("rollout-requests", rollout_id)[0] for rollout_id in ids]
    assert len(set(ids)) == 3
    assert {event["group_size"] for event in events} == {3} and len({event["group_id"] for event in events}) == 1
    assert siblings({"input": 1, "rollout_id": "ro-g"}, 2) == siblings({"input": 1, "rollout_id": "ro-g"}, 2)
    assert [task["rollout_id"] for task in siblings({"input": 1, "rollout_id": "ro-g"}, 2)] == ["ro-g-0", "ro-g-1"]
    with pytest.raises(UsageError, match="size"):
        tasks.enqueue_group("q", 0)


def test_a_large_input_is_checked_in(tasks, settings, log):
    text = "ä" * 200_000
    event = log.events("rollout-requests", tasks.enqueue({"text": text}))[0]
    assert event["input"] == "null"
    assert json.loads(BlobStore(settings.blob_address()).get(event["input_ref"])) == {"text": text}


@pytest.mark.parametrize(
    ("line", "task"),
    [
        ("3", {"input": 3}),
        ("null", {"input": None}),
        ('{"question": "x"}', {"input": {"question": "x"}}),
        ('{"input": {"mode": 1}, "mode": "val"}', {"input": {"mode": 1}, "mode": "val"}),
    ],
)
def test_what_a_line_means(line: str, task: dict[str, Any]):
    assert task_of_line(json_text.loads(line)) == task


def run_file(tasks: TaskProducer, text: bytes, **options: Any):
    rejected: list[tuple[int, str]] = []
    options.setdefault("max_line_bytes", 100_000)
    file = TaskFile(tasks, on_reject=lambda number, reason: rejected.append((number, reason)), **options)
    return file.run(io.BytesIO(text)), rejected


def test_bad_lines_are_told_and_the_rest_goes_on(tasks, log):
    lines = [
        b'\xef\xbb\xbf{"input": "first", "rollout_id": "ro-file-1"}',
        b"{nope",
        b"",
        b'{"mode": "train"}',
        b'{"input": 1, "output": 2}',
        b'{"input": "\xff"}',
        b"[" * 200 + b"]" * 200,
        b'"' + b"x" * 120_000 + b'"',
        b'{"input": NaN}',
        b'{"input": 1, "config": {"max_attempts": 0}}',
        b'{"input": "last", "rollout_id": "ro-file-2"}',
    ]
    outcome, rejected = run_file(tasks, b"\r\n".join(lines), defaults={"mode": "test", "run_id": None})
    assert (outcome.produced, outcome.rejected, outcome.rollout_ids) == (2, 8, ["ro-file-1", "ro-file-2"])
    assert [number for number, _ in rejected] == [2, 4, 5, 6, 7, 8, 9, 10]
    words = ["not JSON", "input: missing", "output: unknown", "not JSON", "nested deeper", "MAX_TASK_BYTES", "not JSON"]
    for (number, reason), word in zip(rejected, [*words, "config.max_attempts"], strict=True):
        assert word in reason, (number, reason)
    first = log.events("rollout-requests", "ro-file-1")[0]
    assert (json.loads(first["input"]), first["mode"]) == ("first", "test")


def test_groups_raw_lines_and_refused_events(tasks, settings):
    outcome, rejected = run_file(tasks, b'{"input": 1}\n{"input": 2}\n', group_size=4)
    assert (outcome.produced, len(set(outcome.rollout_ids or ())), rejected) == (8, 8, [])
    outcome, rejected = run_file(tasks, b'{"mode": "x"}\n', raw=True)
    assert (outcome.produced, rejected) == (1, [])
    from agl_stream.producers.event_producer import EventProducer
    from agl_stream.schemas.codec import Codec

    lost = dataclasses.replace(settings, namespace="nowhere", delivery_timeout_seconds=6.0)
    with EventProducer(lost, name="tests", codec=Codec()) as producer:
        outcome, rejected = run_file(TaskProducer(lost, producer=producer), b"1\n2\n")
        assert (outcome.produced, outcome.rejected) == (0, 2)
        assert [number for number, _ in rejected] == [1, 2]


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=10,
    )
)
def test_depth_is_what_nesting_says(value):
    def depth(item: Any) -> int:
        if isinstance(item, dict):
            return 1 + max(map(depth, item.values()), default=0)
        return 1 + max(map(depth, item), default=0) if isinstance(item, list) else 0

    text = json_text.dumps(value)
    assert json_text.loads(text, max_depth=depth(value)) == value
    if depth(value):
        with pytest.raises(json_text.BadJson, match="nested deeper"):
            json_text.loads(text, max_depth=depth(value) - 1)
