"""One model call as its client asked for it, and the body that goes upstream instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from agl_stream.producers import json_text
from agl_stream.producers.gateway.replies import Refusal
from agl_stream.schemas.clock import now_us

CHAT = "chat/completions"
COMPLETIONS = "completions"


@dataclass
class Call:
    """A recorded call. ``data`` is the client's body, byte for byte; ``body`` the same, parsed."""

    route: str
    rollout_id: str
    attempt_id: str
    data: bytes
    body: dict[str, Any]
    sequence_id: int
    trace_id: str
    parent_id: str | None
    started_at_us: int = field(default_factory=now_us)

    @property
    def chat(self) -> bool:
        return self.route == CHAT

    @property
    def stream(self) -> bool:
        return self.body.get("stream") is True

    @property
    def asked_for_logprobs(self) -> bool:
        wanted = self.body.get("logprobs")
        return wanted is not None and wanted is not False

    @property
    def choices(self) -> int:
        """How many choices a whole answer has."""
        n = self.body.get("n")
        each = n if isinstance(n, int) and n > 0 else 1
        prompt = self.body.get("prompt")
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        return each * len(prompt) if several and not self.chat else each  # type: ignore[arg-type]

    def upstream_body(self, refused: frozenset[str] = frozenset()) -> bytes:
        """The client's body, asking for token ids and logprobs as well; ``refused`` names what the upstream does
        not understand."""
        extras: dict[str, Any] = {}
        if "return_token_ids" not in refused and self.body.get("return_token_ids") is not True:
            extras["return_token_ids"] = True
        if "logprobs" not in refused and not self.asked_for_logprobs:
            extras["logprobs"] = True if self.chat else 1
        if not extras:
            return self.data
        if self.body and not extras.keys() & self.body.keys():
            # spliced in front, so that the client's own bytes stay as they are (numbers, order, escapes)
            start = self.data.index(b"{") + 1
            return self.data[:start] + orjson.dumps(extras)[1:-1] + b"," + self.data[start:]
        return orjson.dumps({**self.body, **extras})


def parse_body(data: bytes) -> dict[str, Any]:
    """A request body as an object; Refusal says what is wrong with it."""
    try:
        body = json_text.loads(data)
    except json_text.BadJson as error:
        raise Refusal(400, "bad_json", f"the request body is {error}") from None
    if not isinstance(body, dict):
        raise Refusal(400, "bad_json", f"the request body is a JSON {type(body).__name__}, not an object")
    return body
