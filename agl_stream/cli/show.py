"""`agl-stream show ROLLOUT`: what happened to one rollout, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agl_stream.cli.output import emit_json, human_seconds, output_option, shorten
from agl_stream.cli.shared import load_settings

if TYPE_CHECKING:
    from agl_stream.cli.views import SystemView


def gather(view: SystemView, rollout_id: str) -> dict[str, Any]:
    """The rollout with its spans, triplets and trainings; raises NotFound when nobody knows it."""
    from agl_stream.errors import NotFound

    rollout = view.rollout(rollout_id)
    if rollout is None:
        raise NotFound(
            f"rollout {rollout_id} is not known; `agl-stream tail rollout-requests` lists what was asked for, and "
            "--bootstrap-servers, --namespace or --dir choose another system"
        )
    return {
        "rollout": rollout,
        "spans": view.spans(rollout),
        "triplets": view.triplets(rollout),
        "trainings": view.trainings(rollout),
    }


def timeline(found: dict[str, Any]) -> list[tuple[int, str]]:
    """(microseconds since the epoch, line) in order of time."""
    rollout = found["rollout"]
    lines = [(rollout["requested_at_us"], f"requested ({rollout['mode']}) input {shorten(rollout['input'], 80)}")]
    for attempt in rollout["attempts"]:
        lines += _attempt_lines(attempt)
    numbers = {attempt["attempt_id"]: attempt["attempt_number"] for attempt in rollout["attempts"]}
    for span in found["spans"]:
        lines.append((span["started_at_us"], _span_line(span, numbers.get(span["attempt_id"]))))
    if rollout["ended_at_us"]:
        lines.append((rollout["ended_at_us"], rollout["status"] + _because(rollout)))
    for joined in found["triplets"]:
        what = f"{len(joined['triplets'])} triplet(s)" + _reward(joined["reward"]) + _because(joined)
        lines.append((joined["occurred_at_us"], f"joined, revision {joined['revision']}: {what}"))
    for training in found["trainings"]:
        versions = f"version {training['version_in']} -> {training['version_out']}"
        what = f"{training['outcome']} in step {training['step']} of {training['learner_id']}"
        lines.append((training["at_us"], f"{what} ({versions}, {training['rows']} rows){_because(training)}"))
    return sorted(lines, key=lambda line: line[0])


def _attempt_lines(attempt: dict[str, Any]) -> list[tuple[int, str]]:
    name = f"attempt {attempt['attempt_number']}"
    deliveries = f", delivery {attempt['delivery']}" if attempt["delivery"] > 1 else ""
    lines = [(attempt["dispatched_at_us"], f"{name} dispatched{deliveries}")]
    if attempt["started_at_us"]:
        lines.append((attempt["started_at_us"], f"{name} started on {attempt['worker_id']}"))
    if attempt["ended_at_us"]:
        ended = f"{name} {attempt['status']}" + _reward(attempt["reward"]) + _because(attempt)
        lines.append((attempt["ended_at_us"], ended))
    return lines


def _span_line(span: dict[str, Any], attempt_number: int | None) -> str:
    from agl_stream.cli.render import tokens_text
    from agl_stream.schemas.tokens import unpack_ids

    parts = [f"  {span['kind']} {span['name']}"]
    if span["ended_at_us"]:
        parts.append(human_seconds(max(0, span["ended_at_us"] - span["started_at_us"]) / 1e6))
    packed = span["response_token_ids"]
    if packed is not None:
        ids = unpack_ids(packed[: len(packed) // 4 * 4])
        parts.append(f"{len(span['prompt_token_ids'] or b'') // 4} -> {tokens_text(len(ids), ids)}")
    if span["resources_version"] is not None:
        parts.append(f"version {span['resources_version']}")
    if span["status"] == "error":
        parts.append(f"ERROR {shorten(span['status_description'] or '', 80)}")
    if attempt_number is not None and attempt_number > 1:
        parts.append(f"(attempt {attempt_number})")
    return " ".join(parts) + _reward(span["reward"])


def _reward(value: float | None) -> str:
    return "" if value is None else f", reward {value:g}"


def _because(fields: dict[str, Any]) -> str:
    if not fields["reason_code"]:
        return ""
    detail = fields.get("detail")
    return f" ({fields['reason_code']}{': ' + shorten(detail, 100) if detail else ''})"


@click.command()
@click.argument("rollout_id", metavar="ROLLOUT")
@output_option
def command(rollout_id: str, output: str) -> None:
    """Tell what happened to ROLLOUT: request, attempts, spans with their durations, reward, triplets, training step.

    Exit status 1 when the rollout is not known. With --output json: one object with rollout, spans, triplets and
    trainings, with the fields of the events.
    """
    from agl_stream.cli.log_reader import LogReader
    from agl_stream.cli.render import as_json, clock_time
    from agl_stream.cli.view_choice import open_view

    settings = load_settings()
    with LogReader(settings) as reader, open_view(settings, reader) as view:
        found = gather(view, rollout_id)
    if output == "json":
        emit_json(as_json(found))
        return
    lines = timeline(found)
    rollout = found["rollout"]
    click.echo(f"{rollout_id} {rollout['status']}" + (f", group {rollout['group_id']}" if rollout["group_id"] else ""))
    for at_us, line in lines:
        since = (at_us - lines[0][0]) / 1e6
        click.echo(f"  {clock_time(at_us)} {since:+9.3f} s  {line}")
