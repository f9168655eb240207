"""topics plan|apply and schemas check|register against a real broker and registry."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from agl_stream.cli.topic_plan import BATCH_OVERHEAD_BYTES, ExistingTopic, plan
from agl_stream.errors import AglStreamError
from agl_stream.schemas.topics import TOPICS
from agl_stream.settings import Settings
from tests.cli.conftest import Agl, parsed

PLAIN = Settings.load(namespace="n", partitions=8)


def as_wanted(settings: Settings) -> dict[str, ExistingTopic]:
    size = {"max.message.bytes": str(settings.max_record_bytes + BATCH_OVERHEAD_BYTES)}
    return {
        settings.topic(t.name): ExistingTopic(t.partitions or settings.partitions, {**t.config(), **size})
        for t in TOPICS.values()
    }


def test_a_cluster_that_matches_keeps_everything() -> None:
    assert {change.action for change in plan(as_wanted(PLAIN), PLAIN)} == {"keep"}


@given(st.sampled_from(sorted(TOPICS)), st.integers(1, 64))
def test_another_partition_count_is_refused_whether_more_or_fewer(name: str, partitions: int) -> None:
    existing = as_wanted(PLAIN)
    topic = existing[PLAIN.topic(name)]
    existing[PLAIN.topic(name)] = replace(topic, partitions=partitions)
    change = next(c for c in plan(existing, PLAIN) if c.topic == PLAIN.topic(name))
    assert change.action == ("keep" if partitions == topic.partitions else "refuse")
    if change.action == "refuse":
        assert f"AGL_STREAM_PARTITIONS={partitions}" in change.why


@given(st.sets(st.sampled_from(sorted(TOPICS))))
def test_what_is_missing_is_created(missing: set[str]) -> None:
    existing = {n: t for n, t in as_wanted(PLAIN).items() if n.removeprefix("n.") not in missing}
    created = {c.topic.removeprefix("n.") for c in plan(existing, PLAIN) if c.action == "create"}
    assert created == missing


def test_only_the_settings_that_differ_are_set() -> None:
    existing = as_wanted(PLAIN)
    spans = existing["n.spans"]
    existing["n.spans"] = replace(spans, config={**spans.config, "retention.ms": "1"})
    (change,) = (c for c in plan(existing, PLAIN) if c.action != "keep")
    assert (change.action, change.config) == ("configure", {"retention.ms": "604800000"})


@pytest.mark.parametrize(("found", "action"), [("1048588", "configure"), ("99999999", "keep")])
def test_a_topic_takes_the_largest_record_and_may_take_more(found: str, action: str) -> None:
    existing = as_wanted(PLAIN)
    spans = existing["n.spans"]
    existing["n.spans"] = replace(spans, config={**spans.config, "max.message.bytes": found})
    (change,) = (c for c in plan(existing, PLAIN) if c.topic == "n.spans")
    assert change.action == action
    assert change.config == ({"max.message.bytes": "8389632"} if action == "configure" else {})


def test_plan_changes_nothing_and_apply_once_is_enough(agl: Agl, settings: Settings) -> None:
    def actions(*arguments: str) -> set[str]:
        (answer,) = parsed(agl("topics", *arguments, "--output", "json"))
        return {change["action"] for change in answer["changes"]}

    assert actions("plan") == {"create"}
    assert actions("plan") == {"create"}
    assert actions("apply") == {"create"}
    assert actions("apply") == {"keep"}
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    own = {n: len(t.partitions) for n, t in admin.list_topics(timeout=10).topics.items() if settings.topic("") in n}
    assert own == {settings.topic(t.name): t.partitions or 4 for t in TOPICS.values()}


def test_apply_corrects_the_configuration(agl: Agl, settings: Settings) -> None:
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    wrong = NewTopic(settings.topic("rollouts"), 4, 1, config={"cleanup.policy": "delete"})
    admin.create_topics([wrong])[wrong.topic].result()
    assert f"~ configure {wrong.topic} (4 partitions) cleanup.policy=compact" in agl("topics", "plan").stdout
    agl("topics", "apply")
    assert "~" not in agl("topics", "plan").stdout


def test_apply_refuses_another_partition_count_and_changes_nothing(agl: Agl, settings: Settings) -> None:
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    wrong = NewTopic(settings.topic("spans"), 2, 1)
    admin.create_topics([wrong])[wrong.topic].result()
    shown = agl("topics", "plan")
    assert shown.exit_code == 1 and f"! refuse    {wrong.topic} (2 partitions)" in shown.stdout
    result = agl("topics", "apply")
    assert isinstance(result.exception, AglStreamError)
    assert "keeps its count" in str(result.exception) and "AGL_STREAM_PARTITIONS=2" in str(result.exception)
    assert settings.topic("rollouts") not in admin.list_topics(timeout=10).topics


def test_schemas_are_checked_and_registered(agl: Agl) -> None:
    (checked,) = parsed(agl("schemas", "check", "--output", "json"))
    assert checked["ok"] and checked["events"]["SpanRecorded"]["versions"] >= 1
    (first,) = parsed(agl("schemas", "apply", "--output", "json"))
    (again,) = parsed(agl("schemas", "apply", "--output", "json"))
    assert first == again and set(first["ids"]) == set(checked["events"])


def test_a_schema_that_breaks_the_promise_fails_the_check(agl: Agl, monkeypatch: pytest.MonkeyPatch) -> None:
    from agl_stream.schemas import events

    current = events.current("SpanRecorded")
    broken = {**current, "fields": [f for f in current["fields"] if f["name"] != "rollout_id"]}
    original = events.history
    monkeypatch.setattr(events, "history", lambda name: (broken, current) if name == "SpanRecorded" else original(name))
    result = agl("schemas", "check")
    assert result.exit_code == 1
    assert "SpanRecorded (2 version(s)): SpanRecorded v2 cannot read v1" in result.stdout


def test_register_without_a_registry_is_exit_code_3(agl: Agl) -> None:
    result = agl("schemas", "apply", AGL_STREAM_REGISTRY_URL="http://127.0.0.1:1")
    assert getattr(result.exception, "exit_code", None) == 3
    assert "AGL_STREAM_REGISTRY_URL" in str(result.exception)
