"""The comparison that catches a server which serves something else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agl_stream.errors import EngineUnreachable
from agl_stream.trainer.batch import Row
from agl_stream.trainer.served_check import ServedMismatch, compare, served_completion


class Upstream:
    """A server that gives the answers it is told to, then repeats the last."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.asked: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                outer.asked.append({"authorization": self.headers.get("authorization")})
                outer.asked[-1] |= json.loads(self.rfile.read(length))
                status, answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    made = Upstream()
    yield made
    made.close()


def answer(version: int | None = 3, **fields: Any) -> dict[str, Any]:
    choice = {"token_ids": [8, 1], "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}}
    made: dict[str, Any] = {"prompt_token_ids": [5, 6], "choices": [choice], **fields}
    return made if version is None else {**made, "resources_version": version}


def ask(upstream: Upstream, seconds: float = 5.0) -> Row:
    return served_completion(
        upstream.url, model="policy", prompt="1+2=", version=3, api_key="key", timeout_seconds=seconds
    )


def test_it_asks_until_the_version_answers(upstream: Upstream) -> None:
    upstream.answers = [(503, {"error": "loading"}), (200, answer(version=2)), (200, answer(version=3))]
    row = ask(upstream)
    assert (row.prompt_ids, row.response_ids, row.logprobs) == ([5, 6], [8, 1], [-0.5, -0.25])
    assert len(upstream.asked) == 3
    assert upstream.asked[0]["authorization"] == "Bearer key"
    assert upstream.asked[0]["temperature"] == 1.0


def test_a_server_that_does_not_say_its_version_is_believed(upstream: Upstream) -> None:
    upstream.answers = [(200, answer(version=None))]
    assert ask(upstream).version == 3


def test_a_wrong_version_or_nobody_in_time_is_named(upstream: Upstream) -> None:
    upstream.answers = [(200, answer(version=2))]
    with pytest.raises(EngineUnreachable, match=r"version 3 within 0\.6 s .it answers from version 2"):
        ask(upstream, 0.6)
    upstream.close()
    upstream.url = "http://127.0.0.1:9/v1"
    with pytest.raises(EngineUnreachable, match="AGL_STREAM_UPSTREAM_URL"):
        ask(upstream, 0.3)


@pytest.mark.parametrize("missing", ["prompt_token_ids", "choices"])
def test_an_answer_without_ids_cannot_be_trained_on(upstream: Upstream, missing: str) -> None:
    incomplete = answer()
    del incomplete[missing]
    upstream.answers = [(200, incomplete)]
    with pytest.raises(ServedMismatch, match="lacks token ids or logprobs"):
        ask(upstream)


def test_equal_logprobs_pass_and_others_stop_the_run() -> None:
    row = Row("", [5, 6], [8, 1], [-0.5, -0.25], 3)
    assert compare(row, lambda rows: [[-0.5, -0.2504]], limit=1e-3, version=3) == pytest.approx(4e-4)
    with pytest.raises(ServedMismatch, match=r"version 3 differ by 0\.05 .*more than 0\.001 .--logprob-limit"):
        compare(row, lambda rows: [[-0.5, -0.3]], limit=1e-3, version=3)
