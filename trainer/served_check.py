"""Does the server serve what was trained? Logprobs of one fixed prompt, served against computed.

A server that loads weights wrongly (a packed copy of a tied head, a cached prefix, a half-applied update) goes on
answering, and training goes astray in silence. One short completion after each new version shows it.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from agl_stream.errors import AglStreamError, EngineUnreachable
from agl_stream.trainer.batch import Row

_TOKENS = 8
_CALL_SECONDS = 30.0
_RETRY_SECONDS = 0.25


class ServedMismatch(AglStreamError):
    """The server's logprobs are not those of the weights that were published."""


def served_completion(
    upstream_url: str, *, model: str, prompt: str, version: int, api_key: str = "", timeout_seconds: float = 60.0
) -> Row:
    """A completion of ``prompt`` by the inference server, as a row with the logprobs it reports.

    Where the server says which version answered, an answer of another version is asked for again. Raises
    EngineUnreachable when no such answer comes within ``timeout_seconds``, ServedMismatch when ids or logprobs are
    missing from it.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": _TOKENS,
        "temperature": 1.0,
        "logprobs": True,
        "return_token_ids": True,
    }
    deadline = time.monotonic() + timeout_seconds
    problem = ""
    while time.monotonic() < deadline:
        try:
            answer = _post(upstream_url.rstrip("/") + "/chat/completions", body, api_key)
        except (OSError, ValueError) as error:
            problem = _explain(error)
        else:
            served = answer.get("resources_version")
            if served in (None, version):
                return _row(answer, version)
            problem = f"it answers from version {served}"
        time.sleep(_RETRY_SECONDS)
    raise EngineUnreachable(
        f"the inference server at {upstream_url} gave no answer from version {version} within {timeout_seconds:g} s "
        f"({problem}); set AGL_STREAM_UPSTREAM_URL"
    )


def compare(row: Row, logprobs_of: Callable[[list[Row]], Any], *, limit: float, version: int) -> float:
    """Largest distance between the row's logprobs and the trainer's own; ServedMismatch above ``limit``."""
    (computed,) = logprobs_of([row])
    assert row.logprobs is not None
    distance = max(abs(float(a) - b) for a, b in zip(computed, row.logprobs, strict=True))
    if distance > limit:
        raise ServedMismatch(
            f"served and trained logprobs of version {version} differ by {distance:.2g} on the fixed prompt, more than "
            f"{limit:g} (--logprob-limit): the server does not serve the weights it was given (a tied head kept in a "
            "packed copy, another dtype, a cached prefix)"
        )
    return distance


def _row(answer: dict[str, Any], version: int) -> Row:
    try:
        choice = answer["choices"][0]
        logprobs = [float(entry["logprob"]) for entry in choice["logprobs"]["content"]]
        row = Row("", list(answer["prompt_token_ids"]), list(choice["token_ids"]), logprobs, version)
    except (KeyError, IndexError, TypeError) as error:
        raise ServedMismatch(
            f"the inference server's answer lacks token ids or logprobs ({error!r}); training needs both"
        ) from None
    if not row.response_ids or len(row.response_ids) != len(logprobs):
        raise ServedMismatch(f"the server gave {len(row.response_ids)} token ids and {len(logprobs)} logprobs")
    return row


def _post(url: str, body: dict[str, Any], api_key: str) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise AglStreamError(f"AGL_STREAM_UPSTREAM_URL={url} is no http address")
    headers = {"content-type": "application/json"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - checked above
    with urllib.request.urlopen(request, timeout=_CALL_SECONDS) as response:  # noqa: S310
        return json.load(response)


def _explain(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}: {error.read(300).decode(errors='replace')}"
    return str(error)
