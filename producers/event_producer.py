"""The one way events get onto the log: idempotent, acknowledged by all replicas, bounded, loud about failures."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from agl_stream import connections
from agl_stream.errors import (
    AglStreamError,
    BufferFull,
    DeliveryFailed,
    RecordTooLarge,
    SettingError,
    UsageError,
)
from agl_stream.producers.client_config import client_config, instance, version
from agl_stream.producers.client_logging import client_logger
from agl_stream.producers.delivery import Flight, LoopBridge, OnDelivery, describe
from agl_stream.schemas.clock import now_us
from agl_stream.schemas.codec import Codec, Encoder
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import new_id
from agl_stream.schemas.topics import TOPICS
from agl_stream.settings import Settings

_POLL_SECONDS = 0.5
_REVIVALS_PER_MINUTE = 5

_open_producers: weakref.WeakSet[EventProducer] = weakref.WeakSet()


class EventProducer:
    """Sends events to the topics of one namespace.

    Every event is encoded before ``send`` returns, so an event that does not fit its schema or the size limit
    raises there and then. An event may be delivered more than once (a broker restart at the wrong moment), never
    reordered within a key while the client lives, and never dropped in silence: what is not acknowledged within
    ``delivery_timeout_seconds`` raises from the next ``flush``, from ``deliver``, or goes to ``on_delivery``.

    Thread-safe; one instance per process is enough. It does not survive a fork: make it in the child.
    A broker that restarts is waited for.
    """

    def __init__(
        self, settings: Settings, *, name: str, codec: Codec | None = None, linger_ms: float | None = None
    ) -> None:
        """``name``: the role that goes into each event's ``producer``. ``linger_ms`` overrides the setting where
        latency matters more than batches. Connects in the background; ``check`` says whether a broker is there."""
        self._settings = settings
        self._codec = codec or Codec(connections.registry_client(settings))
        self._identity = {"name": name, "instance": instance(), "version": version()}
        self._log = client_logger(name)
        self._wire: dict[str, tuple[str, Encoder]] = {}
        self._refusal = connections.Refusal(settings)
        self._config = client_config(settings, name, linger_ms, self._refusal)
        self._client = self._connect()
        self._retired: list[Producer] = []
        self._revivals: list[float] = []
        self._flight = Flight()
        self._flights: list[Flight] = [self._flight]
        self._bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopBridge] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._unusable: str | None = None
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name=f"agl-producer-{name}", daemon=True)
        self._poller.start()
        _open_producers.add(self)

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def identity(self) -> dict[str, str]:
        """What ``send`` writes into an event's ``producer``."""
        return dict(self._identity)

    def check(self) -> None:
        """Raise EngineUnreachable unless a broker answers within ``connect_timeout_seconds``, AccessRefused when it
        does not let this client in."""
        connections.first_answer(self._client, self._settings, self._refusal)

    def warm(self, *topics: str) -> None:
        """Get the schema ids of ``topics`` now, so that no event loop waits for the registry at its first event.
        Raises EngineUnreachable."""
        for topic in topics:
            self._wire[topic] = self._wire_of(topic)

    def send(
        self,
        topic: str,
        event: Event,
        *,
        key: str | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Hand over one event; ``topic`` without namespace, ``key`` by the topic's rule when not given.

        ``event_id``, ``occurred_at_us`` and ``producer`` are filled in on a copy when missing. Returns before the
        acknowledgement. Blocks while the buffer (``buffer_events``, ``buffer_bytes``) is full, at most
        ``delivery_timeout_seconds``, then raises BufferFull. ``on_delivery(error, message)`` runs on the
        producer's own thread and must be quick. Raises EncodeError, RecordTooLarge, DeliveryFailed.
        """
        record = self._record(topic, event, key, partition)
        with self._lock:
            flight = self._flight
            flight.board()
        self._produce(record, partial(self._landed, flight, on_delivery, record), flight)

    def send_bytes(
        self,
        wire_topic: str,
        value: bytes | None,
        *,
        key: str,
        partition: int,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """As ``send``, for a record that is no event of the catalogue: a processor's changelog. ``wire_topic`` is the
        full name; ``value`` None is a tombstone."""
        if self._unusable is not None:
            raise AglStreamError(self._unusable)
        record = (wire_topic, value, key, partition)
        with self._lock:
            flight = self._flight
            flight.board()
        self._produce(record, partial(self._landed, flight, on_delivery, record), flight)

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Block until every event given to ``send`` before this call is acknowledged or has failed.

        Raises DeliveryFailed when one has failed since the last flush, TimeoutError after ``timeout_seconds``
        (default: a little over ``delivery_timeout_seconds``, after which nothing can be outstanding).
        """
        for flight in self._land(timeout_seconds):
            flight.raise_failures()

    def settle(self, timeout_seconds: float | None = None) -> None:
        """As ``flush``, for callers who have heard of each failure by ``on_delivery``: raises only TimeoutError."""
        self._land(timeout_seconds)

    def _land(self, timeout_seconds: float | None) -> list[Flight]:
        if timeout_seconds is None:
            timeout_seconds = self._settings.delivery_timeout_seconds + 10.0
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            awaited = list(self._flights)
            self._flight = Flight()
            self._flights.append(self._flight)
        for flight in awaited:
            if not flight.wait(deadline):
                raise TimeoutError(
                    f"{flight.pending} event(s) are not acknowledged after {timeout_seconds:g} s; they are still "
                    "being sent. Is the broker at AGL_STREAM_BOOTSTRAP_SERVERS up?"
                )
        with self._lock:
            self._flights = [flight for flight in self._flights if flight not in awaited]
        return awaited

    def deliver(self, topic: str, events: Iterable[tuple[str | None, Event]]) -> None:
        """Send (key, event) pairs and block until all are acknowledged; raises DeliveryFailed naming the first
        that is not. Events sent by other threads are not waited for."""
        flight = Flight()
        for key, event in events:
            record = self._record(topic, event, key, None)
            flight.board()
            self._produce(record, partial(self._landed, flight, None, record), flight)
        if not flight.wait(time.monotonic() + self._settings.delivery_timeout_seconds + 10.0):
            raise DeliveryFailed(f"{flight.pending} event(s) for {topic} are neither acknowledged nor refused")
        flight.raise_failures()

    async def adeliver(
        self, topic: str, event: Event, *, key: str | None = None, partition: int | None = None
    ) -> tuple[int, int]:
        """As ``send``, for event loops: returns (partition, offset) once acknowledged, never blocks the loop.

        Raises what ``send`` raises, and DeliveryFailed. A cancelled caller's event may be delivered all the same.
        """
        loop = asyncio.get_running_loop()
        bridge = self._bridges.get(loop)
        if bridge is None:
            bridge = self._bridges[loop] = LoopBridge(loop)
        record = self._record(topic, event, key, partition)
        future: asyncio.Future[tuple[int, int]] = loop.create_future()
        callback = partial(self._settled, bridge, future, record)
        deadline = 0.0
        while not self._try_produce(record, callback):
            deadline = deadline or time.monotonic() + self._settings.delivery_timeout_seconds
            if time.monotonic() > deadline:
                raise self._buffer_full()
            await asyncio.sleep(0.005)
        return await future

    def close(self, timeout_seconds: float | None = None) -> None:
        """Flush and stop. Raises what ``flush`` raises, after stopping. A second call does nothing."""
        if self._closing.is_set():
            return
        try:
            self.flush(timeout_seconds)
        finally:
            self._client.flush(1.0)
            self._closing.set()
            self._poller.join(timeout=10.0)
            _open_producers.discard(self)
            self._unusable = "the producer is closed"

    def __enter__(self) -> EventProducer:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            return self.close()
        try:
            self.close(timeout_seconds=5.0)
        except (AglStreamError, TimeoutError) as error:
            # the failure on its way out is the news; this one only adds to it
            self._log.error("closing: %s", error)

    def _record(self, topic: str, event: Event, key: str | None, partition: int | None) -> tuple[Any, ...]:
        if self._unusable is not None:
            raise AglStreamError(self._unusable)
        try:
            wire_name, encode = self._wire[topic]
        except KeyError:
            wire_name, encode = self._wire[topic] = self._wire_of(topic)
        if not (event.get("event_id") and event.get("occurred_at_us") and event.get("producer")):
            event = {
                **event,
                "event_id": event.get("event_id") or new_id(),
                "occurred_at_us": event.get("occurred_at_us") or now_us(),
                "producer": event.get("producer") or self._identity,
            }
        value = encode(event)
        if key is None:
            key = _key_of(topic, event)
        if len(value) + len(key) > self._settings.max_record_bytes:
            raise RecordTooLarge(
                f"{TOPICS[topic].event} {event['event_id']} of {len(value):,} bytes is larger than "
                f"AGL_STREAM_MAX_RECORD_BYTES={self._settings.max_record_bytes:,}; payloads above "
                f"AGL_STREAM_INLINE_LIMIT_BYTES={self._settings.inline_limit_bytes:,} belong in the blob store"
            )
        return wire_name, value, key, -1 if partition is None else partition

    def _wire_of(self, topic: str) -> tuple[str, Encoder]:
        if topic not in TOPICS:
            raise UsageError(f"there is no topic {topic!r}; topics are {', '.join(TOPICS)}")
        return self._settings.topic(topic), self._codec.encoder(TOPICS[topic].event)

    def _produce(self, record: tuple[Any, ...], callback: Any, flight: Flight) -> None:
        """Hand over, waiting for room; when that fails, the event leaves ``flight`` and the caller hears of it."""
        try:
            deadline = 0.0
            while not self._try_produce(record, callback):
                deadline = deadline or time.monotonic() + self._settings.delivery_timeout_seconds
                if time.monotonic() > deadline:
                    raise self._buffer_full()
                self._client.poll(0.02)
        except BaseException:
            flight.landed()
            raise

    def _try_produce(self, record: tuple[Any, ...], callback: Any) -> bool:
        wire_name, value, key, partition = record
        client = self._client
        try:
            client.produce(wire_name, value, key, partition, callback)
        except BufferError:
            return False
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() != KafkaError._FATAL:
                raise DeliveryFailed(describe(reason, wire_name)) from None
            self._revive(client)
            return False
        return True

    def _buffer_full(self) -> BufferFull:
        return BufferFull(
            f"the producer's buffer (AGL_STREAM_BUFFER_EVENTS={self._settings.buffer_events:,}, "
            f"AGL_STREAM_BUFFER_BYTES={self._settings.buffer_bytes:,}) stayed full for "
            f"{self._settings.delivery_timeout_seconds:g} s; is the broker at {self._settings.bootstrap_servers} up?"
        )

    def _landed(
        self, flight: Flight, on_delivery: OnDelivery | None, record: tuple[Any, ...], error: Any, message: Any
    ) -> None:
        if error is not None and self._resend(error, record, partial(self._landed, flight, on_delivery, record)):
            return
        failure = None if error is None else describe(error, record[0])
        if failure is not None:
            self._log.error("event not delivered: %s", failure)
        try:
            if on_delivery is not None:
                on_delivery(error, message)
        except Exception:  # noqa: BLE001 it would end the thread that serves every other event's callback
            self._log.exception("on_delivery of an event for %s failed", record[0])
        finally:
            flight.landed(failure)

    def _settled(
        self, bridge: LoopBridge, future: asyncio.Future[Any], record: tuple[Any, ...], error: Any, message: Any
    ) -> None:
        if error is None:
            bridge.post(future, (message.partition(), message.offset()))
        elif not self._resend(error, record, partial(self._settled, bridge, future, record)):
            bridge.post(future, DeliveryFailed(describe(error, record[0])))

    def _resend(self, error: KafkaError, record: tuple[Any, ...], callback: Any) -> bool:
        """Whether an event that fell with a broken client is on its way again with a new one.

        It may then be on the log twice, with the same event_id. Other failures are the caller's to judge.
        """
        if error.code() not in (KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            return False
        try:
            # the first try may find that the client it speaks to is dead, too, and put a new one in its place
            return not self._closing.is_set() and any(self._try_produce(record, callback) for _ in range(2))
        except AglStreamError:
            return False

    def _connect(self) -> Producer:
        try:
            return Producer(self._config, logger=self._log)
        except KafkaException as error:
            raise SettingError(f"the Kafka client refuses its settings: {error.args[0].str()}") from None

    def _revive(self, broken: Producer) -> None:
        """Replace a client that reports a fatal error, as an idempotent one does when the broker lost its state.

        Bounded, so that a fault that comes back at once is raised instead of hidden.
        """
        with self._lock:
            if self._client is not broken:
                return
            now = time.monotonic()
            self._revivals = [at for at in self._revivals if now - at < 60.0]
            if len(self._revivals) >= _REVIVALS_PER_MINUTE:
                raise DeliveryFailed(
                    f"the Kafka client failed for good {_REVIVALS_PER_MINUTE} times within a minute; the broker at "
                    f"{self._settings.bootstrap_servers} does not keep producer state"
                )
            self._revivals.append(now)
            self._log.warning("the Kafka client reported a fatal error; a new one takes over, nothing is dropped")
            self._client = self._connect()
            self._retired.append(broken)
        broken.purge()

    def _poll(self) -> None:
        while not self._closing.is_set():
            self._client.poll(_POLL_SECONDS)
            for retired in list(self._retired):
                retired.poll(0)
                if not len(retired):
                    self._retired.remove(retired)


def _key_of(topic: str, event: Event) -> str:
    """A topic's key, from the event."""
    if topic == "triplets":
        return event.get("group_id") or event["rollout_id"]
    if topic == "resources":
        return f"{event['resources_id']}@{event['version']}"
    if topic == "rejects":
        return event["event_id"]
    return event[TOPICS[topic].key]


def _refuse_after_fork() -> None:
    for producer in list(_open_producers):
        producer._unusable = "an EventProducer does not survive a fork: make a new one in the child process"


os.register_at_fork(after_in_child=_refuse_after_fork)
