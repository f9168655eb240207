"""How a running demo is shown: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import RenderableType

_PLAIN_EVERY_SECONDS = 5.0
_BAR_WIDTH = 40


@dataclass
class Snapshot:
    """What is shown at one moment."""

    phase: str
    steps: int
    steps_wanted: int
    rewards: list[float] = field(default_factory=list[float])
    tool_use: float | None = None
    rollouts: int = 0
    rollouts_per_second: float = 0.0
    spans: int = 0
    spans_per_second: float = 0.0
    lag: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def reward(self) -> float | None:
        """Mean of the newest steps: one step of few rollouts is a noisy number."""
        recent = self.rewards[-5:]
        return sum(recent) / len(recent) if recent else None


class View(Protocol):
    def update(self, snapshot: Snapshot) -> None:
        """Show the state; cheap to call often."""
        ...

    def note(self, line: str) -> None:
        """Tell of something that happened. Thread-safe."""
        ...

    def close(self) -> None: ...


class PlainView:
    """A line whenever the phase changes, and every few seconds in between."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._phase = ""
        self._shown_at = 0.0

    def update(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        if snapshot.phase == self._phase and now - self._shown_at < _PLAIN_EVERY_SECONDS:
            return
        self._phase, self._shown_at = snapshot.phase, now
        print(as_line(snapshot), file=self._stream, flush=True)

    def note(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def close(self) -> None:
        pass


class RichView:
    """A panel that is redrawn in place, notes above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def update(self, snapshot: Snapshot) -> None:
        self._live.update(as_panel(snapshot))

    def note(self, line: str) -> None:
        self._console.print(line, style="dim", markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()


def as_line(snapshot: Snapshot) -> str:
    """Everything on one line."""
    parts = [f"[{snapshot.phase}]"]
    if snapshot.rewards or snapshot.rollouts:
        parts.append(f"step {snapshot.steps}/{snapshot.steps_wanted}")
        parts.append(f"reward {_number(snapshot.reward)}")
        parts.append(f"tool use {_percent(snapshot.tool_use)}")
        parts.append(f"{snapshot.rollouts:,} rollouts ({snapshot.rollouts_per_second:.0f}/s)")
        parts.append(f"{snapshot.spans:,} spans ({snapshot.spans_per_second:.0f}/s)")
        parts.append(f"lag {sum(snapshot.lag.values()):,}")
    return "  ".join(parts)


def as_panel(snapshot: Snapshot) -> RenderableType:
    """The same, drawn."""
    from rich.panel import Panel
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", style="bold")
    grid.add_column()
    done = snapshot.steps / snapshot.steps_wanted if snapshot.steps_wanted else 0.0
    filled = round(done * _BAR_WIDTH)
    grid.add_row("step", f"{'━' * filled}{'╌' * (_BAR_WIDTH - filled)} {snapshot.steps}/{snapshot.steps_wanted}")
    grid.add_row("reward", f"{_number(snapshot.reward)}  {sparkline(snapshot.rewards, _BAR_WIDTH)}")
    grid.add_row("tool use", _percent(snapshot.tool_use))
    grid.add_row("rollouts", f"{snapshot.rollouts:,}  ({snapshot.rollouts_per_second:.0f}/s)")
    grid.add_row("spans", f"{snapshot.spans:,}  ({snapshot.spans_per_second:.0f}/s)")
    lag = "  ".join(f"{group.rpartition('.')[2]} {count:,}" for group, count in sorted(snapshot.lag.items()))
    grid.add_row("lag", lag or "-")
    return Panel(grid, title=f"agl-stream demo: {snapshot.phase}", title_align="left", expand=False)


def sparkline(values: list[float], width: int) -> str:
    """Rewards from 0 to 1 as blocks, averaged into at most `width` of them."""
    blocks = "▁▂▃▄▅▆▇█"
    if not values:
        return ""
    width = min(width, len(values))
    means: list[float] = []
    for i in range(width):
        part = values[i * len(values) // width : (i + 1) * len(values) // width]
        means.append(sum(part) / len(part))
    return "".join(blocks[min(len(blocks) - 1, max(0, int(mean * len(blocks))))] for mean in means)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
