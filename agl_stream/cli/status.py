"""`agl-stream status`: how the system stands."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from agl_stream.cli.output import emit_json, human_seconds, output_option, table
from agl_stream.cli.shared import load_settings

if TYPE_CHECKING:
    from agl_stream.cli.log_reader import LogReader
    from agl_stream.cli.views import SystemView
    from agl_stream.settings import Settings

_OPEN_SHOWN = 1000
_LISTED = 10


def gather(settings: Settings, reader: LogReader, view: SystemView, *, account: bool = False) -> dict[str, Any]:
    """Everything `status` tells, as JSON values; with ``account`` the account of training rollouts as well."""
    from agl_stream.cli.views import WAITING_STATUSES

    now_us = time.time_ns() // 1000
    rollouts = view.rollouts_by_status()
    lag_by_topic = reader.group_lag(reader.groups())
    resources = view.resources()
    told: dict[str, Any] = {"account": _account(view)} if account else {}
    return {
        "bootstrap_servers": settings.bootstrap_servers,
        "namespace": settings.namespace,
        "source": view.source,
        "rollouts": rollouts,
        "queue": sum(rollouts.get(status, 0) for status in WAITING_STATUSES),
        "attempts": _open_attempts(view, now_us),
        "lag": {group: sum(topics.values()) for group, topics in lag_by_topic.items()},
        "lag_by_topic": lag_by_topic,
        "rejects": view.rejects_by_reason(),
        "workers": [_worker(heartbeat, now_us) for heartbeat in view.workers()],
        "resources": [
            {
                "resources_id": published["resources_id"],
                "version": published["version"],
                "age_seconds": _age(published["occurred_at_us"], now_us),
            }
            for published in resources
        ],
        "steps": {p["learner_id"]: p["step"] for p in resources if p["learner_id"] is not None},
        **told,
    }


def _account(view: SystemView) -> dict[str, Any]:
    from agl_stream.errors import UsageError

    account = view.account()
    if account is None:
        raise UsageError(
            "the account of rollouts is kept by the state store: run `agl-stream status --account` in the folder of "
            "the running system (--dir), or set AGL_STREAM_STORE_URL"
        )
    return account


def _open_attempts(view: SystemView, now_us: int) -> list[dict[str, Any]]:
    """The current attempt of each open rollout that has one, oldest first."""
    attempts: list[dict[str, Any]] = []
    for rollout in view.open_rollouts(_OPEN_SHOWN):
        if not rollout["attempts"]:
            continue
        latest = rollout["attempts"][-1]
        since = latest["started_at_us"] or latest["dispatched_at_us"]
        attempts.append(
            {
                "rollout_id": rollout["rollout_id"],
                "attempt_id": latest["attempt_id"],
                "attempt_number": latest["attempt_number"],
                "status": latest["status"],
                "worker_id": latest["worker_id"],
                "delivery": latest["delivery"],
                "age_seconds": _age(since, now_us),
            }
        )
    return attempts


def _worker(heartbeat: dict[str, Any], now_us: int) -> dict[str, Any]:
    """A worker as its last heartbeat says; `overdue` when the next one has not come in three intervals."""
    silence = _age(heartbeat["occurred_at_us"], now_us)
    stopped = heartbeat["status"] == "stopped"
    return {
        "worker_id": heartbeat["worker_id"],
        "role": heartbeat["role"],
        "status": heartbeat["status"],
        "overdue": not stopped and silence > 3 * max(heartbeat["interval_seconds"], 1.0),
        "silent_seconds": silence,
        "slots_total": heartbeat["slots_total"],
        "slots_free": heartbeat["slots_free"],
        "attempts": len(heartbeat["attempts"]),
        "resources_id": heartbeat["resources_id"],
        "resources_version": heartbeat["resources_version"],
    }


def _age(since_us: int, now_us: int) -> float:
    return round(max(0, now_us - since_us) / 1e6, 3)


@click.command()
@click.option("--watch", is_flag=True, help="Show it again every --interval until Ctrl-C.")
@click.option("--account", is_flag=True, help="Add what became of every training rollout; reads all of them.")
@click.option("--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds.")
@output_option
def command(watch: bool, account: bool, interval: float, output: str) -> None:
    """Show how the system stands: rollouts by status, queue, open attempts, lag of each consumer group, rejects by
    reason, workers, newest resources and training steps.

    Answers come from the state store of the running system when this is its data folder, else from the log
    itself, for which a broker and a registry suffice. With --output json: one object (one a line with --watch).
    """
    settings = load_settings()
    while True:
        found = _look(settings, account)
        if output == "json":
            emit_json(found)
        else:
            if watch:
                click.clear()
            click.echo(_as_text(found))
        if not watch:
            return
        time.sleep(interval)


def _look(settings: Settings, account: bool) -> dict[str, Any]:
    from agl_stream.cli.log_reader import LogReader
    from agl_stream.cli.view_choice import open_view

    with LogReader(settings) as reader, open_view(settings, reader) as view:
        return gather(settings, reader, view, account=account)


def _account_lines(account: dict[str, Any]) -> list[str]:
    dropped, failed = account["dropped"], account["failed"]
    lines = [
        f"account: {account['requested']:,} requested = {account['trained']:,} trained "
        f"+ {sum(dropped.values()):,} dropped + {sum(failed.values()):,} failed "
        f"+ {account['cancelled']:,} cancelled + {account['in_flight']:,} in flight"
    ]
    for name, reasons in (("dropped", dropped), ("failed", failed)):
        if reasons:
            lines.append(f"  {name}: " + ", ".join(f"{count:,} {reason}" for reason, count in reasons.items()))
    for name in ("trained_twice", "unrequested"):
        if account[name]:
            lines.append(f"  {name.replace('_', ' ')}: {', '.join(account[name])}")
    return lines


def _as_text(found: dict[str, Any]) -> str:
    lines = [f"{found['bootstrap_servers']}, namespace {found['namespace']} (from the {found['source']})", ""]
    counts = ", ".join(f"{count:,} {status}" for status, count in sorted(found["rollouts"].items())) or "none yet"
    lines.append(f"rollouts: {counts}; {found['queue']:,} waiting")
    if "account" in found:
        lines += _account_lines(found["account"])
    if found["steps"]:
        lines.append("training: " + ", ".join(f"{name} at step {step}" for name, step in found["steps"].items()))
    lines.append(
        "resources: "
        + (", ".join(f"{r['resources_id']}@{r['version']}" for r in found["resources"]) or "none published")
    )
    lines += ["", "lag (records not committed past)"]
    lines.append(
        table(
            ["group", "total", "topics"],
            [
                [group, total, ", ".join(f"{t} {n:,}" for t, n in found["lag_by_topic"][group].items() if n)]
                for group, total in sorted(found["lag"].items())
            ],
        )
    )
    lines += ["", "open attempts" + (f" (oldest {_LISTED})" if len(found["attempts"]) > _LISTED else "")]
    lines.append(
        table(
            ["rollout", "attempt", "status", "worker", "since"],
            [
                [a["rollout_id"], a["attempt_number"], a["status"], a["worker_id"], human_seconds(a["age_seconds"])]
                for a in found["attempts"][:_LISTED]
            ],
        )
    )
    lines += ["", "workers"]
    lines.append(
        table(
            ["worker", "role", "status", "slots free", "last heard"],
            [
                [
                    w["worker_id"],
                    w["role"],
                    w["status"] + (" (overdue)" if w["overdue"] else ""),
                    f"{w['slots_free']}/{w['slots_total']}",
                    human_seconds(w["silent_seconds"]) + " ago",
                ]
                for w in found["workers"]
            ],
        )
    )
    lines += ["", "rejects"]
    lines.append(table(["reason", "records"], sorted(found["rejects"].items())))
    return "\n".join(lines)
