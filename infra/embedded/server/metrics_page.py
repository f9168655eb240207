"""The broker's metrics as a page in Prometheus' text format, over HTTP on loopback.

The page is made when it is asked for: only counting costs anything between two scrapes. GET /metrics, nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Iterable

from agl_stream.infra.embedded.groups.group import GroupState
from agl_stream.infra.embedded.log.metrics import COUNTERS, measure
from agl_stream.infra.embedded.server.listener import Listener
from agl_stream.infra.embedded.server.metrics import LATENCY_BOUNDS_SECONDS, RequestStats
from agl_stream.infra.embedded.server.metrics_catalogue import (
    PREFIX,
    STORAGE_COUNTERS,
    STORAGE_SIZES,
    Metric,
    catalogue,
)
from agl_stream.infra.embedded.server.node import Node

logger = logging.getLogger(__name__)

_REQUEST_SECONDS = 5.0
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, float]
"""What follows the metric's name (a suffix, labels), and the value."""


def render(node: Node, listener: Listener) -> str:
    """The page as of now."""
    samples = _server_samples(node, listener) | _storage_samples(node)
    lines: list[str] = []
    for metric in catalogue():
        lines += _lines(metric, samples[metric.name.removeprefix(PREFIX)])
    return "\n".join(lines) + "\n"


def _lines(metric: Metric, samples: Iterable[Sample]) -> Iterable[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for suffix, value in samples:
        yield f"{metric.name}{suffix} {value:.17g}"


def _server_samples(node: Node, listener: Listener) -> dict[str, list[Sample]]:
    metrics = node.metrics
    stats = list(metrics.by_api.values())
    return {
        "connections": [("", len(listener.connections))],
        "connections_accepted_total": [("", metrics.accepted_connections)],
        "connections_turned_away_total": _labelled("setting", metrics.turned_away),
        "connections_refused_total": [("", metrics.refused_connections)],
        "requests_total": _labelled("api", {s.api.name: s.requests for s in stats}),
        "request_seconds": [sample for s in stats for sample in _histogram(s)],
        "request_bytes_total": _labelled("api", {s.api.name: s.request_bytes for s in stats}),
        "response_bytes_total": _labelled("api", {s.api.name: s.response_bytes for s in stats}),
        "throttled_requests_total": _labelled("api", {s.api.name: s.throttled for s in stats}),
        "throttled_seconds_total": _labelled("api", {s.api.name: s.throttled_seconds for s in stats}),
        "queued_request_bytes": [("", listener.memory.held_bytes)],
        "parked_connections": [("", listener.memory.waiting)],
        "stalled_connections": [("", sum(connection.is_stalled for connection in listener.connections))],
        "topics": [("", len(node.catalogue))],
        "groups": _labelled("state", _group_states(node)),
        "transactions": _labelled("state", Counter(str(known.state) for known in node.transactions.known())),
    }


def _group_states(node: Node) -> Counter[str]:
    active = {group.group_id: str(group.state) for group in node.groups.groups()}
    states = Counter(active.values())
    states[str(GroupState.EMPTY)] += sum(group not in active for group in node.offsets.groups())
    return states


def _storage_samples(node: Node) -> dict[str, list[Sample]]:
    size = measure(node.catalogue.logs())
    samples: dict[str, list[Sample]] = {f"storage_{name}": [("", getattr(size, name))] for name in STORAGE_SIZES}
    for name in STORAGE_COUNTERS:
        samples[f"storage_{name}_total"] = [("", getattr(COUNTERS, name))]
    return samples


def _labelled(label: str, values: dict[str, int] | dict[str, float] | Counter[str]) -> list[Sample]:
    """Values by a label whose values are names of ours: nothing needs to be escaped."""
    return [(f'{{{label}="{name}"}}', value) for name, value in sorted(values.items())]


def _histogram(stats: RequestStats) -> Iterable[Sample]:
    api = stats.api.name
    bounds = (*(f"{bound:g}" for bound in LATENCY_BOUNDS_SECONDS), "+Inf")
    for bound, count in zip(bounds, itertools.accumulate(stats.buckets), strict=True):
        yield f'_bucket{{api="{api}",le="{bound}"}}', count
    yield f'_sum{{api="{api}"}}', stats.seconds
    yield f'_count{{api="{api}"}}', stats.requests


class MetricsPage:
    """Serves render() until close()."""

    def __init__(self, node: Node, listener: Listener) -> None:
        self._node = node
        self._listener = listener
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen on a port, 0 for a free one; returns it. Raises OSError when it is in use."""
        self._server = await asyncio.start_server(self._serve, host, port)
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(*head.partition(b" ")[::2]))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            logger.debug("metrics: no answer, the request came to nothing: %r", error)
        finally:
            writer.close()

    def _answer(self, method: bytes, rest: bytes) -> bytes:
        if method != b"GET":
            return _response("405 Method Not Allowed", "GET /metrics is what there is\n")
        if rest.split(b" ", 1)[0].partition(b"?")[0] != b"/metrics":
            return _response("404 Not Found", "the page is /metrics\n")
        return _response("200 OK", render(self._node, self._listener))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {_CONTENT_TYPE}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "\r\n",
    )
    return "\r\n".join(head).encode() + body
