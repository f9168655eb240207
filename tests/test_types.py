"""The public types: the reference's field names, rules and addresses."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pydantic import ValidationError

from agl_stream.errors import UsageError
from agl_stream.types import (
    LLM,
    Attempt,
    AttemptedRollout,
    PromptTemplate,
    ProxyLLM,
    Rollout,
    RolloutConfig,
    Span,
    Triplet,
    parse_resources,
)

ATTEMPT = Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=2.0)


@pytest.mark.parametrize(
    ("endpoint", "bound"),
    [
        ("http://h:1/v1", "http://h:1/rollout/ro-1/attempt/at-1/v1"),
        ("http://h:1/v1/", "http://h:1/rollout/ro-1/attempt/at-1/v1"),
        ("http://h:1", "http://h:1/rollout/ro-1/attempt/at-1"),
        ("http://h:1/base/", "http://h:1/base/rollout/ro-1/attempt/at-1"),
    ],
)
def test_proxy_addresses(endpoint: str, bound: str) -> None:
    proxy = ProxyLLM(endpoint=endpoint, model="m", api_key="k", sampling_parameters={"top_p": 0.5})
    assert proxy.get_base_url() == endpoint
    assert proxy.get_base_url("ro-1", "at-1") == bound
    llm = proxy.with_attempted_rollout(AttemptedRollout(rollout_id="ro-1", input=1, start_time=1.0, attempt=ATTEMPT))
    assert (type(llm), llm.endpoint, llm.model, llm.api_key) == (LLM, bound, "m", "k")
    assert (llm.base_url, proxy.base_url) == (bound, endpoint)
    llm.sampling_parameters["top_p"] = 1.0
    assert proxy.sampling_parameters == {"top_p": 0.5}


@pytest.mark.parametrize("ids", [{"rollout_id": "ro-1"}, {"attempt_id": "at-1"}])
def test_one_id_alone_is_refused(ids: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="both or neither"):
        ProxyLLM(endpoint="http://h/v1", model="m").get_base_url(**ids)


def test_reading_a_proxy_endpoint_warns(caplog: pytest.LogCaptureFixture) -> None:
    proxy = ProxyLLM(endpoint="http://h/v1", model="m")
    with caplog.at_level(logging.WARNING):
        proxy.get_base_url("ro-1", "at-1")
        proxy.model_dump()
        assert not caplog.records
        assert proxy.endpoint == "http://h/v1"
    assert "get_base_url" in caplog.text


def test_prompt_templates() -> None:
    assert PromptTemplate(template="{a}!").format(a=1) == "1!"
    with pytest.raises(NotImplementedError, match="poml"):
        PromptTemplate(template="<p/>", engine="poml").format()


def test_resources_are_told_apart_by_type() -> None:
    text = (
        '{"llm":{"resource_type":"proxy_llm","endpoint":"http://h/v1","model":"m"},'
        '"plain":{"resource_type":"llm","endpoint":"http://h","model":"n"},'
        '"hello":{"resource_type":"prompt_template","template":"hi"}}'
    )
    assert [type(r).__name__ for r in parse_resources(text).values()] == ["ProxyLLM", "LLM", "PromptTemplate"]
    assert parse_resources("{}") == {}
    for broken in ("[]", "{", '{"x":{"resource_type":"warp_drive"}}', '{"x":{"resource_type":"llm"}}'):
        with pytest.raises(UsageError, match="resources cannot be read"):
            parse_resources(broken)


def test_an_attempt_belongs_to_its_rollout() -> None:
    with pytest.raises(ValidationError, match="ro-2"):
        AttemptedRollout(rollout_id="ro-2", input=1, start_time=1.0, attempt=ATTEMPT)


@pytest.mark.parametrize(
    "wrong", [{"max_attempts": 0}, {"timeout_seconds": 0}, {"unresponsive_seconds": -1}, {"retry_condition": ["lost"]}]
)
def test_configs_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RolloutConfig(**wrong)


def test_defaults_are_no_limits_and_no_retries() -> None:
    rollout = Rollout(rollout_id="ro-1", input=None, start_time=1.0)
    assert rollout.status == "queuing"
    assert rollout.config == RolloutConfig(timeout_seconds=None, unresponsive_seconds=None, max_attempts=1)
    assert rollout.config.retry_condition == []
    assert Triplet(prompt="p", response="r").reward is None


def test_span_of_an_event() -> None:
    event: dict[str, Any] = {
        "rollout_id": "ro-1",
        "attempt_id": "at-1",
        "span_id": "ab" * 8,
        "trace_id": "cd" * 16,
        "parent_id": "ef" * 8,
        "sequence_id": 7,
        "name": "tool",
        "status": "error",
        "status_description": "no",
        "started_at_us": 1_500_000,
        "ended_at_us": None,
        "attributes": '{"a":1}',
        "events": "[]",
        "links": "[]",
        "resource": '{"attributes":{"r":2},"schema_url":""}',
    }
    span = Span.from_event(event)
    assert (span.status.status_code, span.status.description) == ("ERROR", "no")
    assert (span.start_time, span.end_time, span.attributes, span.resource.attributes) == (
        1.5,
        None,
        {"a": 1},
        {"r": 2},
    )
    assert span.parent is not None and span.parent.span_id == "ef" * 8
    assert Span(**span.model_dump(), vendor="kept").model_dump()["vendor"] == "kept"
