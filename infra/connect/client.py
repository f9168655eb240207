"""Kafka Connect over its REST interface: the few questions that the sinks need."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from agl_stream.errors import AglStreamError, EngineUnreachable, NotFound

_TIMEOUT_SECONDS = 30.0
_REBALANCE_PATIENCE_SECONDS = 30.0
_CONFLICT = 409


class ConnectRefused(AglStreamError):
    """Connect answered, and said no."""


class ConnectClient:
    """A Connect cluster, reached at any of its workers. Every call blocks for an answer.

    Raises EngineUnreachable when nobody answers, NotFound for an unknown connector, ConnectRefused otherwise. While
    the workers agree on who runs what, they refuse changes; such calls are repeated for half a minute.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def plugins(self) -> set[str]:
        """Class names of the connectors that the worker can run."""
        return {plugin["class"] for plugin in self._call("GET", "/connector-plugins")}

    def configs(self) -> dict[str, dict[str, str]]:
        """Configuration of every connector, by name."""
        found = self._call("GET", "/connectors?expand=info")
        return {name: entry["info"]["config"] for name, entry in found.items()}

    def put(self, name: str, config: dict[str, str]) -> None:
        """Create a connector, or give it another configuration."""
        self._call("PUT", f"/connectors/{quote(name, safe='')}/config", config)

    def status(self, name: str) -> dict[str, Any]:
        """State of a connector and its tasks, as Connect tells it; UNASSIGNED for one that no worker has taken yet."""
        try:
            return self._call("GET", f"/connectors/{quote(name, safe='')}/status")
        except NotFound:
            return {"name": name, "connector": {"state": "UNASSIGNED"}, "tasks": []}

    def restart_failed(self, name: str) -> None:
        """Restart the connector and those of its tasks that have failed."""
        self._call("POST", f"/connectors/{quote(name, safe='')}/restart?includeTasks=true&onlyFailed=true")

    def delete(self, name: str) -> None:
        """Remove a connector; what it wrote and its offsets stay."""
        self._call("DELETE", f"/connectors/{quote(name, safe='')}")

    def _call(self, method: str, path: str, body: object = None) -> Any:
        deadline = time.monotonic() + _REBALANCE_PATIENCE_SECONDS
        while True:
            try:
                return self._ask(method, path, body)
            except urllib.error.HTTPError as error:
                said = _message(error)
                if error.code == _CONFLICT and time.monotonic() < deadline:
                    time.sleep(0.2)
                    continue
                kind = NotFound if error.code == 404 else ConnectRefused
                raise kind(f"Kafka Connect at {self.url} refused {method} {path}: {said}") from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = getattr(error, "reason", None) or error
                raise EngineUnreachable(
                    f"no Kafka Connect answers at {self.url} ({reason}); start a worker "
                    "(`agl-stream engines start kafka connect`), or set AGL_STREAM_CONNECT_URL"
                ) from None

    def _ask(self, method: str, path: str, body: object) -> Any:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError("not an http address")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 (scheme checked above)
            self.url + path, data, {"Content-Type": "application/json", "Accept": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
            text = answer.read()
        return json.loads(text) if text else None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"HTTP {error.code}"
