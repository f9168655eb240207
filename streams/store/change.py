"""What it takes to bring a state store to this version's layout."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Action = Literal["create", "migrate", "configure", "refuse", "keep"]


@dataclass(frozen=True)
class Change:
    """One step, or what is in its way: ``detail`` says what is done, or why it is refused and the remedy."""

    action: Action
    thing: str
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
