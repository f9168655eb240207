"""How verbs answer: text for people, one JSON value for programs (`--output json`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import click

output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people or JSON for programs.",
)
"""Decorator: adds the parameter `output`."""


def emit_json(value: Any) -> None:
    """Print one JSON value on one line of stdout; NaN and infinities, which JSON lacks, become null."""
    click.echo(json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":")))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Aligned columns; numbers to the right. An empty table says so."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return "  (none)"
    numeric = [all(_is_number(row[i]) for row in cells) for i in range(len(headers))]
    widths = [max(len(row[i]) for row in [list(headers), *cells]) for i in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        return "  " + "  ".join(padded).rstrip()

    return "\n".join([line(headers), *(line(row) for row in cells)])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "", 1).replace("%", "").isdigit()


def human_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def human_seconds(seconds: float) -> str:
    """0.0042 -> '4.2 ms', 75 -> '1 min 15 s'."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def shorten(text: str, width: int) -> str:
    """`text` on one line, cut to `width` characters with an ellipsis."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
