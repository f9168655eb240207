"""What the server counts: connections, requests by API, bytes, throttling. Plain numbers, read by the metrics page.

Counting a request costs a dictionary look-up, a bisection of eight numbers and a few additions.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from agl_stream.infra.embedded.protocol.apis import Api, Request

LATENCY_BOUNDS_SECONDS = (0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
"""Upper bounds of the latency histogram; the last bucket, without bound, follows them."""


@dataclass(slots=True)
class RequestStats:
    """Requests of one API."""

    api: Api
    requests: int = 0
    seconds: float = 0.0
    """From the whole frame to the encoded answer, summed up; a long poll's wait is part of it."""
    request_bytes: int = 0
    response_bytes: int = 0
    throttled: int = 0
    throttled_seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_SECONDS) + 1))


@dataclass(slots=True)
class ServerMetrics:
    """Of one broker since its start."""

    by_api: dict[int, RequestStats] = field(default_factory=dict[int, RequestStats])
    accepted_connections: int = 0
    refused_connections: int = 0
    """Closed with a line in the log: nonsense on the wire, unknown APIs, half-sent frames, failed handlers."""
    turned_away: dict[str, int] = field(default_factory=dict[str, int])
    """Closed right after their arrival, by the setting that they were over."""

    def answered(self, request: Request, response_bytes: int, seconds: float) -> None:
        stats = self.by_api.get(request.api.key)
        if stats is None:
            stats = self.by_api[request.api.key] = RequestStats(request.api)
        stats.requests += 1
        stats.seconds += seconds
        stats.request_bytes += request.size_bytes
        stats.response_bytes += response_bytes
        stats.buckets[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1

    def throttled(self, request: Request, seconds: float) -> None:
        stats = self.by_api.setdefault(request.api.key, RequestStats(request.api))
        stats.throttled += 1
        stats.throttled_seconds += seconds

    def turn_away(self, setting: str) -> None:
        self.turned_away[setting] = self.turned_away.get(setting, 0) + 1
