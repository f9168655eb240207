"""Where schema ids come from: a Confluent-compatible registry, or a local one for a single process.

Both answer two questions: the id of one of our event types, and the schema behind an id. Answers are cached
for the life of the process, so that a registry that goes away later stops nobody who is already running.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Protocol

from agl_stream.errors import EngineUnreachable, RegistryRefused, UnknownSchema
from agl_stream.schemas import events
from agl_stream.schemas.topics import EVENT_TOPIC, topic_name


class Registry(Protocol):
    """The port."""

    def id_of(self, event_type: str) -> int:
        """The id of the current schema of ``event_type``."""
        ...

    def schema_of(self, schema_id: int) -> events.Schema:
        """The schema behind ``schema_id``; UnknownSchema when there is none, EngineUnreachable when nobody
        answers and it is not cached."""
        ...


class LocalRegistry:
    """Ids by order of the event types, versions counted in; for tests and single-process use."""

    def __init__(self) -> None:
        self._schemas: dict[int, events.Schema] = {}
        self._ids: dict[str, int] = {}
        for event_type in events.EVENT_TYPES:
            for schema in events.history(event_type):
                self._ids[event_type] = len(self._schemas) + 1
                self._schemas[self._ids[event_type]] = schema

    def id_of(self, event_type: str) -> int:
        return self._ids[event_type]

    def schema_of(self, schema_id: int) -> events.Schema:
        try:
            return self._schemas[schema_id]
        except KeyError:
            raise UnknownSchema(f"schema id {schema_id} is not known to the local registry") from None


class RegistryClient:
    """A registry over HTTP, through confluent-kafka's client (authentication and TLS by its own settings).

    Subjects are ``<namespace>.<topic>-value``. With ``register`` (the default, for development) a schema the
    registry lacks is registered; without, it must be there.
    """

    def __init__(
        self, url: str, *, namespace: str = "agl", register: bool = True, config: dict[str, Any] | None = None
    ) -> None:
        self._url, self._namespace, self._register = url, namespace, register
        self._config = {"url": url, "timeout": 10, "max.retries": 2, **(config or {})}
        self._client: Any = None
        self._lock = threading.Lock()
        self._ids: dict[str, int] = {}
        self._schemas: dict[int, events.Schema] = {}

    def id_of(self, event_type: str) -> int:
        if (known := self._ids.get(event_type)) is not None:
            return known
        from confluent_kafka.schema_registry import Schema

        subject = topic_name(self._namespace, EVENT_TOPIC[event_type]) + "-value"
        schema = Schema(json.dumps(events.current(event_type)), "AVRO")
        client = self._connect()
        if self._register:
            schema_id = self._ask(lambda: client.register_schema(subject, schema))
        else:
            schema_id = self._ask(lambda: client.lookup_schema(subject, schema).schema_id)
        self._ids[event_type] = schema_id
        return schema_id

    def schema_of(self, schema_id: int) -> events.Schema:
        if (known := self._schemas.get(schema_id)) is not None:
            return known
        client = self._connect()
        found = json.loads(self._ask(lambda: client.get_schema(schema_id)).schema_str)
        self._schemas[schema_id] = found
        return found

    def register_all(self) -> dict[str, int]:
        """Register every version of every event, oldest first; returns the current ids. Registering again
        changes nothing."""
        from confluent_kafka.schema_registry import Schema

        client = self._connect()
        for event_type in events.EVENT_TYPES:
            subject = topic_name(self._namespace, EVENT_TOPIC[event_type]) + "-value"
            for version in events.history(event_type):
                schema = Schema(json.dumps(version), "AVRO")
                self._ids[event_type] = self._ask(lambda s=subject, v=schema: client.register_schema(s, v))
        return dict(self._ids)

    def subjects(self) -> list[str]:
        """All subjects of the registry, of every namespace. Raises EngineUnreachable."""
        client = self._connect()
        return self._ask(client.get_subjects)

    def _connect(self) -> Any:
        with self._lock:
            if self._client is None:
                from confluent_kafka.schema_registry import SchemaRegistryClient

                self._client = SchemaRegistryClient(self._config)
            return self._client

    def _ask(self, call: Any) -> Any:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return call()
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                raise UnknownSchema(
                    f"the registry at {self._url} does not know it ({error.error_message}); "
                    "run `agl-stream schemas register`, or correct AGL_STREAM_REGISTRY_URL"
                ) from None
            if error.http_status_code >= 500:
                raise self._unreachable(error) from None
            raise RegistryRefused(f"the registry at {self._url} refused: {error.error_message}") from None
        except (OSError, RuntimeError, ValueError) as error:
            raise self._unreachable(error) from None
        except Exception as error:
            # the client's HTTP library has its own error classes, which are no OSErrors
            if type(error).__module__.split(".")[0].startswith(("httpx", "httpcore")):
                raise self._unreachable(error) from None
            raise

    def _unreachable(self, error: Exception) -> EngineUnreachable:
        return EngineUnreachable(
            f"the schema registry at {self._url} does not answer ({type(error).__name__}: {error}); "
            "start it with `agl-stream up`, or set AGL_STREAM_REGISTRY_URL"
        )
