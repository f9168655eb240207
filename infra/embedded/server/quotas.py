"""Client quotas: how much a client id may send, read and have worked on, as Kafka measures it.

Rates are measured over eleven windows of a second (BrokerConfig.quota_windows). A client over its rate is told for how
long (throttle_time_ms) and is not listened to meanwhile; nothing is refused. Quotas set by AlterClientQuotas are in
one file of the data folder.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.journal import DamagedFile

PRODUCER_RATE, CONSUMER_RATE, REQUEST_PERCENTAGE = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
KEYS = (PRODUCER_RATE, CONSUMER_RATE, REQUEST_PERCENTAGE)

_WINDOW_SECONDS = 1.0
_WINDOWS = 11
_MAX_REQUEST_THROTTLE_SECONDS = _WINDOW_SECONDS
_SWEEP_ABOVE = 1024
_FORMAT = 1


class WindowedSum:
    """What a client used in the last `windows` seconds; the newest of them is under way."""

    __slots__ = ("_span_seconds", "_windows", "total")

    def __init__(self, windows: int = _WINDOWS) -> None:
        self._windows: deque[list[float]] = deque()
        self._span_seconds = windows * _WINDOW_SECONDS
        self.total = 0.0

    def add(self, amount: float, now: float) -> None:
        self._expire(now)
        if self._windows and now - self._windows[-1][0] < _WINDOW_SECONDS:
            self._windows[-1][1] += amount
        else:
            self._windows.append([now, amount])
        self.total += amount

    def _expire(self, now: float) -> None:
        while self._windows and now - self._windows[0][0] >= self._span_seconds:
            self.total -= self._windows.popleft()[1]
        if not self._windows:
            self.total = 0.0

    def seconds_over(self, per_second: float, now: float) -> float:
        """How long nothing may come until the rate is `per_second` again. A silent past counts: bursts are allowed."""
        self._expire(now)
        began = self._windows[0][0] if self._windows else now
        elapsed = max(now - began, self._span_seconds - _WINDOW_SECONDS)
        return max(0.0, self.total / per_second - elapsed)

    def is_idle(self, now: float) -> bool:
        self._expire(now)
        return not self._windows


class ClientQuotas:
    """Quotas by client id; of several that fit: the id's own, the default of all ids, the broker's setting."""

    def __init__(self, path: Path, config: BrokerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """Load what was altered; raises DamagedFile."""
        self._path = path
        self._clock = clock
        self._windows = config.quota_windows
        self._broker: dict[str, float | None] = {
            PRODUCER_RATE: config.producer_byte_rate,
            CONSUMER_RATE: config.consumer_byte_rate,
            REQUEST_PERCENTAGE: config.request_percentage,
        }
        self._altered: dict[str | None, dict[str, float]] = self._read()
        self._used: dict[tuple[str, str], WindowedSum] = {}
        self._any = self._find_any()

    def _read(self) -> dict[str | None, dict[str, float]]:
        try:
            saved = json.loads(self._path.read_bytes())
            if saved["format"] != _FORMAT:
                raise DamagedFile(f"{self._path} has format {saved['format']}, this version reads {_FORMAT}.")
            return {client_id: dict(quotas) for client_id, quotas in saved["client_ids"]}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFile(
                f"{self._path} is not readable ({error}). Restore it from a copy, or remove it and all quotas with it."
            ) from error

    def _find_any(self) -> bool:
        """Whether any quota exists: without one a request costs nothing here."""
        return bool(self._altered) or any(limit is not None for limit in self._broker.values())

    # Looking and changing

    def altered(self) -> Mapping[str | None, Mapping[str, float]]:
        """What AlterClientQuotas has set, by client id; None is the default of all."""
        return self._altered

    def alter(self, client_id: str | None, changes: Mapping[str, float | None]) -> None:
        """Set quotas, remove those that are None; on disk when this returns. Raises OSError: nothing is changed."""
        quotas = {**self._altered.get(client_id, {}), **changes}
        kept = {key: value for key, value in quotas.items() if value is not None}
        altered = {**self._altered, client_id: kept}
        altered = {name: values for name, values in altered.items() if values}
        saved = {"format": _FORMAT, "client_ids": list(altered.items())}
        disk.write_whole(self._path, json.dumps(saved, indent=1).encode())
        self._altered = altered
        self._any = self._find_any()

    def limit(self, client_id: str, key: str) -> float | None:
        """The quota in force, None when there is none."""
        for name in (client_id, None):
            found = self._altered.get(name, {}).get(key)
            if found is not None:
                return found
        return self._broker[key]

    # Charging; each returns for how many milliseconds the client has to be silent

    def charge_produced(self, client_id: str, size_bytes: int) -> int:
        """A produce request of `size_bytes`, which is served in any case."""
        limit = self.limit(client_id, PRODUCER_RATE) if self._any else None
        if limit is None:
            return 0
        return self._charge((PRODUCER_RATE, client_id), size_bytes, limit)

    def fetch_budget(self, client_id: str) -> int | None:
        """Bytes that one fetch may return at most, so that no single answer is over the quota for ever."""
        limit = self.limit(client_id, CONSUMER_RATE) if self._any else None
        return None if limit is None else max(1, int(limit * (self._windows - 1) * _WINDOW_SECONDS))

    def charge_fetched(self, client_id: str, size_bytes: int) -> int:
        """An answer of `size_bytes`. If it is over the quota it must not be sent, and is not counted."""
        limit = self.limit(client_id, CONSUMER_RATE) if self._any else None
        if limit is None or not size_bytes:
            return 0
        key = (CONSUMER_RATE, client_id)
        throttle_ms = self._charge(key, size_bytes, limit)
        if throttle_ms and self._used[key].total <= size_bytes:
            return 0  # a single batch above the whole burst: waiting longer would not make it smaller
        if throttle_ms:
            self._used[key].add(-size_bytes, self._clock())
        return throttle_ms

    def charge_time(self, client_id: str, seconds: float) -> int:
        """Work of `seconds` on a request, against request_percentage: 100 is all that one event loop can do."""
        limit = self.limit(client_id, REQUEST_PERCENTAGE) if self._any else None
        if limit is None:
            return 0
        throttle_ms = self._charge((REQUEST_PERCENTAGE, client_id), seconds * 100, limit)
        return min(throttle_ms, int(_MAX_REQUEST_THROTTLE_SECONDS * 1000))

    def _charge(self, key: tuple[str, str], amount: float, limit: float) -> int:
        now = self._clock()
        used = self._used.get(key)
        if used is None:
            self._sweep(now)
            used = self._used[key] = WindowedSum(self._windows)
        used.add(amount, now)
        return math.ceil(used.seconds_over(limit, now) * 1000)

    def _sweep(self, now: float) -> None:
        """Client ids are what clients say: forget those that are silent, once there are many."""
        if len(self._used) >= _SWEEP_ABOVE:
            self._used = {key: used for key, used in self._used.items() if not used.is_idle(now)}
