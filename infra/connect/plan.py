"""What has to be done so that a Connect cluster runs the sinks that are wanted, and how they are doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Action = Literal["create", "update", "keep"]


@dataclass(frozen=True)
class Change:
    """What to do about one connector; `differs` names the settings that an update changes."""

    action: Action
    connector: str
    differs: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan(wanted: Mapping[str, Mapping[str, str]], existing: Mapping[str, Mapping[str, str]]) -> list[Change]:
    """One change for each wanted connector, in order; both map names to configurations. Others are left alone."""
    changes: list[Change] = []
    for name, config in wanted.items():
        if name not in existing:
            changes.append(Change("create", name))
            continue
        # Connect adds the connector's name to what it was given.
        found = {key: value for key, value in existing[name].items() if key != "name"}
        differs = sorted(key for key in {*config, *found} if config.get(key) != found.get(key))
        changes.append(Change("update" if differs else "keep", name, differs))
    return changes


@dataclass(frozen=True)
class Health:
    """How a connector is doing: its state, its tasks' states, and the first line of the first failure."""

    connector: str
    state: str
    tasks: list[str]
    error: str | None

    @property
    def failed(self) -> bool:
        return "FAILED" in (self.state, *self.tasks)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "failed": self.failed}


def health(name: str, status: Mapping[str, Any]) -> Health:
    """From Connect's answer."""
    parts = [status["connector"], *status["tasks"]]
    traces = [part["trace"] for part in parts if part["state"] == "FAILED" and part.get("trace")]
    return Health(
        name,
        status["connector"]["state"],
        [task["state"] for task in status["tasks"]],
        _why(traces[0]) if traces else None,
    )


def _why(trace: str) -> str:
    """The cause at the bottom of a Java stack trace, which is what went wrong; those above say where it was noticed."""
    causes = [line.removeprefix("Caused by: ") for line in trace.splitlines() if line.startswith("Caused by: ")]
    return (causes[-1] if causes else trace.splitlines()[0]).strip()
