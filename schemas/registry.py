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

_COMPATIBILITY = "FULL_TRANSITIVE"
_NO_OWN_LEVEL = 40408
_READ_ONLY = 42205


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

    Subjects are ``<namespace>.<topic>-value``. A schema must be there, put by :meth:`register_all` (``agl-stream
    schemas apply``); with ``register``, which is for development, a missing one is registered on the way.
    """

    def __init__(
        self, url: str, *, namespace: str = "agl", register: bool = False, config: dict[str, Any] | None = None
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
        """Register every version of every event, oldest first; returns the current ids. Again changes nothing.

        A subject whose compatibility is not FULL_TRANSITIVE, the promise of our schemas, is given it, so that a
        registry whose default is laxer keeps others from breaking readers.
        """
        from confluent_kafka.schema_registry import Schema

        client = self._connect()
        for event_type in events.EVENT_TYPES:
            subject = topic_name(self._namespace, EVENT_TOPIC[event_type]) + "-value"
            first, *later = [Schema(json.dumps(version), "AVRO") for version in events.history(event_type)]
            self._ids[event_type] = self._ask(lambda s=subject, v=first: client.register_schema(s, v))
            # After the first version: some registries know no level of a subject that is not there yet.
            self._ask(lambda s=subject: _hold_compatible(client, s))
            for schema in later:
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
                    "run `agl-stream schemas apply`, or correct AGL_STREAM_REGISTRY_URL"
                ) from None
            if error.http_status_code >= 500:
                raise self._unreachable(error) from None
            hint = ""
            if error.error_code == _READ_ONLY:
                hint = "; registration is off there: have whoever runs it run `agl-stream schemas apply`"
            raise RegistryRefused(f"the registry at {self._url} refused: {error.error_message}{hint}") from None
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


def _hold_compatible(client: Any, subject: str) -> None:
    """Give a subject the level of our schemas unless it has it, by itself or from the registry's default."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        level = client.get_compatibility(subject)
    except SchemaRegistryError as error:
        if error.error_code != _NO_OWN_LEVEL:
            raise
        level = client.get_compatibility()
    if level != _COMPATIBILITY:
        client.set_compatibility(subject, _COMPATIBILITY)
