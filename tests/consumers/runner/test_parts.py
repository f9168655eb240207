"""Small parts: who a runner is, what resources it knows, when a state stops an attempt, spans it writes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agl_stream.consumers.runner.attempt import HeldAttempt
from agl_stream.consumers.runner.events import Claim, WorkerIdentity, attempt_event
from agl_stream.consumers.runner.identity import worker_identity
from agl_stream.consumers.runner.resources_view import ResourcesView
from agl_stream.consumers.runner.spans import returned_span_fields
from agl_stream.errors import NotFound, UsageError
from agl_stream.producers.event_producer import EventProducer
from agl_stream.schemas.clock import now_us
from agl_stream.types import Span, SpanCoreFields, TraceStatus


def test_names_are_the_lowest_free_and_survive_a_kill(tmp_path: Path) -> None:
    hold = (
        "import sys,time; from pathlib import Path; from agl_stream.consumers.runner.identity import worker_identity\n"
        "with worker_identity(None, Path(sys.argv[1])) as w: print(w.worker_id, flush=True); time.sleep(60)"
    )
    with worker_identity(None, tmp_path) as first:
        other = subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        second = other.stdout.readline().strip()
        assert (first.worker_id[-2:], second[-2:]) == ("-0", "-1")
        other.kill()
        other.wait()
        with worker_identity(None, tmp_path) as third:
            assert third.worker_id == second
            assert third.instance != first.instance


def test_a_given_name_is_held_alone(tmp_path: Path) -> None:
    with worker_identity("gpu-1", tmp_path) as worker:
        assert worker.worker_id == "gpu-1"
        with pytest.raises(UsageError, match="runs already"), worker_identity("gpu-1", tmp_path):
            pass
    with worker_identity("gpu-1", tmp_path) as again:
        assert again.instance != worker.instance


@pytest.mark.parametrize("name", ["", "a b", "x/y", "-x", "n" * 200])
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name"), worker_identity(name, tmp_path):
        pass


def test_a_folder_that_cannot_be_locked_costs_only_the_stable_name(tmp_path: Path) -> None:
    (tmp_path / "runners").write_text("in the way")
    with worker_identity(None, tmp_path) as worker:
        assert worker.worker_id.startswith("runner-")


def published(version: int, resources_id: str = "rs-1") -> dict[str, Any]:
    template = {"resource_type": "prompt_template", "template": f"v{version}"}
    return {"resources_id": resources_id, "version": version, "resources": json.dumps({"p": template})}


async def test_resources_by_version_latest_and_waited_for() -> None:
    view = ResourcesView()
    assert await view.get(None, None, 0.0) == {}
    with pytest.raises(NotFound, match="rs-1@2"):
        await view.get("rs-1", 2, 0.01)
    waiting = asyncio.create_task(view.get("rs-1", 2, 10.0))
    for version in (1, 3):
        view.apply(published(version))
        await asyncio.sleep(0)
    assert not waiting.done()
    view.apply(published(2))
    assert (await waiting)["p"].template == "v2"  # type: ignore[union-attr]
    assert (await view.get("rs-1", None, 0.0))["p"].template == "v3"  # type: ignore[union-attr]
    mine = await view.get("rs-1", 3, 0.0)
    mine.clear()
    assert view.has("rs-1", 3) and await view.get("rs-1", 3, 0.0)


CLAIM = Claim({"rollout_id": "ro-1", "attempt_id": "at-1", "attempt_number": 2, "delivery": 3}, 0, 0, 1)


def test_reports_of_the_same_fact_are_the_same_event() -> None:
    here = WorkerIdentity("w", "i-1", 0)
    first, second = (attempt_event(CLAIM, here, "failed", at_us) for at_us in (1, 2))
    assert first["event_id"] == second["event_id"]
    others = [
        attempt_event(CLAIM, here, "running", 1),
        attempt_event(CLAIM, WorkerIdentity("w", "i-2", 0), "failed", 1),
    ]
    assert len({first["event_id"], *(event["event_id"] for event in others)}) == 3


def test_returned_spans_keep_their_place_and_meaning() -> None:
    core = returned_span_fields(
        SpanCoreFields(
            name="agentlightning.annotation",
            attributes={"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1},
            start_time=1.5,
        )
    )
    assert (core["kind"], core["reward"], core["status"], core["started_at_us"]) == ("reward", 1.0, "ok", 1_500_000)
    span = Span(
        **{"rollout_id": "", "attempt_id": "", "sequence_id": 0, "trace_id": "a" * 32, "span_id": "b" * 16},
        name="tool",
        parent_id="c" * 16,
        status=TraceStatus(status_code="ERROR", description="no"),
    )
    fields = returned_span_fields(span)
    assert (fields["span_id"], fields["parent_id"], fields["kind"]) == ("b" * 16, "c" * 16, "other")
    assert (fields["status"], fields["status_description"]) == ("error", "no")
    with pytest.raises((TypeError, ValueError)):
        returned_span_fields(SpanCoreFields(name="x", attributes={"y": object()}))
    for time in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="time"):
            returned_span_fields(SpanCoreFields(name="x", end_time=time))


def test_opentelemetry_spans_may_be_returned() -> None:
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("t")
    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner", attributes={"a": 1}) as span:
        pass
    fields = returned_span_fields(span)
    assert (fields["name"], json.loads(fields["attributes"]), fields["status"]) == ("inner", {"a": 1}, "unset")
    assert len(fields["span_id"]) == 16 and len(fields["parent_id"]) == 16
    assert fields["ended_at_us"] >= fields["started_at_us"] > 1_600_000_000_000_000


async def test_a_time_limit_runs_on_a_clock_that_nobody_sets(bench: Any) -> None:
    """The wall clock was set an hour ahead between the claim and the start."""
    dispatch = {"rollout_id": "ro-1", "attempt_id": "at-1", "config": {"timeout_seconds": 60.0}}
    claimed = Claim(dispatch, 0, 0, now_us() - 3_600_000_000)
    with EventProducer(bench.settings, name="runner") as producer:
        shared: Any = SimpleNamespace(producer=producer, claim_check=None)
        timer = HeldAttempt(claimed, shared)._start_timer()
        assert timer is not None
        assert 50 < timer.when() - asyncio.get_running_loop().time() <= 60
        timer.cancel()
