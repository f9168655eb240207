"""The connection to Cassandra: the one place where a cluster is configured, and what its errors mean.

A session is made on first use and belongs to the process that made it: the driver's threads do not survive a fork,
and a child that used its parent's session would wait for ever. A child makes its own.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from agl_stream import connections
from agl_stream.errors import EngineUnreachable, SettingError
from agl_stream.settings import Settings
from agl_stream.streams.store.cassandra.address import Address
from agl_stream.streams.store.cassandra.driver import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ConnectionBusy,
    ConsistencyLevel,
    DCAwareRoundRobinPolicy,
    DriverException,
    ExecutionProfile,
    ExponentialReconnectionPolicy,
    InvalidRequest,
    NoHostAvailable,
    OperationTimedOut,
    PlainTextAuthProvider,
    RetryPolicy,
    TokenAwarePolicy,
    tuple_factory,
)

Session = Any
"""A cassandra.cluster.Session; the driver's types call optional what a connected session always has."""

_driver_log = logging.getLogger("cassandra")
if _driver_log.level == logging.NOTSET:
    # it prints a trace for each node that does not answer; whoever needs the node gets an error that says so
    _driver_log.setLevel(logging.CRITICAL)

REQUEST_SECONDS = 12.0
"""How long the driver waits for an answer: longer than the server's own limits, so that it is the server that says
what did not work."""
_RETRIES = 3


class Connection:
    """A session for each process that asks, with its own prepared statements."""

    def __init__(self, settings: Settings, address: Address, *, keyspace: bool = True) -> None:
        """Without ``keyspace`` the session is of none, as before the keyspace is made."""
        self._settings = settings
        self.address = address
        self._keyspace = address.keyspace if keyspace else None
        self._lock = threading.Lock()
        self._pid = 0
        self._session: Session | None = None
        self._prepared: dict[str, Any] = {}

    @property
    def session(self) -> Session:
        """Raises EngineUnreachable when no node answers, SettingError when they refuse."""
        if self._session is not None and self._pid == os.getpid():
            return self._session
        with self._lock:
            if self._session is None or self._pid != os.getpid():
                with self.explained():
                    # what a parent made is left alone: closing it here would wait for threads that are not there
                    self._prepared = {}
                    self._session = _connect(self._settings, self.address, self._keyspace)
                    self._pid = os.getpid()
            return self._session

    def prepared(self, statement: str) -> Any:
        """The statement, prepared once."""
        session = self.session
        found = self._prepared.get(statement)
        if found is None:
            found = self._patiently(session.prepare, statement)
            # every write carries its own timestamp: written again it changes nothing
            found.is_idempotent = True
            self._prepared[statement] = found
        return found

    def _patiently(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call until the driver takes it: it refuses everything while the network is full of what was sent before."""
        deadline = time.monotonic() + REQUEST_SECONDS
        while True:
            try:
                return call(*args)
            except (NoHostAvailable, DriverException, OperationTimedOut) as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise explain(self.address, error) from error
            time.sleep(0.02)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns the driver's errors into ours."""
        try:
            yield
        except (NoHostAvailable, DriverException, OperationTimedOut) as error:
            raise explain(self.address, error) from error

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._pid == os.getpid():
            session.cluster.shutdown()


def is_busy(error: BaseException) -> bool:
    """Whether the driver did not even send: its connections have more to write than the network takes."""
    if not isinstance(error, NoHostAvailable):
        return False
    told: Any = error.errors
    causes = list(told.values()) if isinstance(told, dict) else []
    return bool(causes) and all(isinstance(cause, ConnectionBusy) for cause in causes)


def explain(address: Address, error: BaseException) -> BaseException:
    """The error to raise for one of the driver's."""
    if isinstance(error, NoHostAvailable):
        told: Any = error.errors
        causes = list(told.values() if isinstance(told, dict) else told or ())
        refused = next((cause for cause in causes if isinstance(cause, InvalidRequest)), None)
        if refused is not None:
            return explain(address, refused)
        why = "; ".join(sorted({_brief(cause) for cause in causes})) or _brief(error)
        if "AuthenticationFailed" in why:
            return SettingError(
                f"the state store at {address} refuses the user: {why}; check AGL_STREAM_STORE_USERNAME and "
                "AGL_STREAM_STORE_PASSWORD"
            )
        return EngineUnreachable(
            f"no node of the state store at {address} answers ({why}); is Cassandra up? AGL_STREAM_STORE_URL says "
            "where it is looked for, AGL_STREAM_STORE_TLS whether over TLS"
        )
    if isinstance(error, InvalidRequest):
        if "does not exist" in str(error) or "unconfigured table" in str(error).lower():
            return SettingError(f"the state store at {address} is not set up ({error}); run `agl-stream store apply`")
        if "allowed maximum" in str(error):
            return SettingError(
                f"the state store at {address} does not take an event of this size ({_brief(error)}): raise "
                "commitlog_segment_size in cassandra.yaml, half of which is the largest write, above twice "
                "AGL_STREAM_MAX_RECORD_BYTES"
            )
        return SettingError(f"the state store at {address} refuses a statement: {error}")
    return EngineUnreachable(
        f"the state store at {address} did not carry out a request ({_brief(error)}); too few replicas may be up, or "
        "they are overloaded: look at `nodetool status`"
    )


def _connect(settings: Settings, address: Address, keyspace: str | None) -> Session:
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(local_dc=address.local_dc)),
        retry_policy=_TryAgain(),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
        request_timeout=REQUEST_SECONDS,
        row_factory=tuple_factory,
    )
    cluster = Cluster(
        [(host, port) for host, port in address.contact_points],
        port=address.contact_points[0][1],
        protocol_version=5,
        connection_class=_Link,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ExponentialReconnectionPolicy(0.5, 5.0),
        connect_timeout=math.ceil(settings.connect_timeout_seconds),
        control_connection_timeout=settings.connect_timeout_seconds,
        # a node that was paused or cut off is found out in seconds, not in half a minute
        idle_heartbeat_interval=5,
        idle_heartbeat_timeout=5,
        # layout.py waits for the schema in its own way
        max_schema_agreement_wait=0,
        compression=False,
        **_protection(settings),
        monitor_reporting_enabled=False,
        application_name="agl-stream",
    )
    try:
        session = cluster.connect()
        if keyspace is not None:
            # not in connect, which does not tell a keyspace that is missing from a node that is
            session.set_keyspace(keyspace)
        return session
    except BaseException:
        with suppress(Exception):
            cluster.shutdown()
        raise


def _protection(settings: Settings) -> dict[str, Any]:
    """Credentials and encryption; raises SettingError where settings contradict each other."""
    found: dict[str, Any] = {}
    if bool(settings.store_username) != bool(settings.store_password):
        raise SettingError(
            "AGL_STREAM_STORE_USERNAME and AGL_STREAM_STORE_PASSWORD belong together: set both or neither"
        )
    if settings.store_username:
        found["auth_provider"] = PlainTextAuthProvider(settings.store_username, settings.store_password)
    if settings.store_tls:
        found["ssl_context"] = connections.ssl_context(
            "AGL_STREAM_STORE",
            ca_file=settings.store_ca_file,
            certificate_file=settings.store_certificate_file,
            key_file=settings.store_key_file,
            key_password=settings.store_key_password,
        )
    elif settings.store_ca_file or settings.store_certificate_file or settings.store_key_file:
        raise SettingError("certificate files of the state store are set and AGL_STREAM_STORE_TLS is off: set it to 1")
    return found


class _Link(Cluster.connection_class):
    """Reads and writes 64 KB at a time instead of 4: a batch of spans is some 50 KB."""

    in_buffer_size = out_buffer_size = 65_536


class _TryAgain(RetryPolicy):
    """Every statement may be repeated: a write that timed out may have happened, and its timestamp makes the
    repetition change nothing. So timeouts and refusals go to another node (or the same, when there is one) before
    anybody hears of them."""

    def on_read_timeout(self, *_: Any, retry_num: int = 0, **__: Any) -> tuple[Any, Any]:
        return self._again(retry_num)

    def on_write_timeout(self, *_: Any, retry_num: int = 0, **__: Any) -> tuple[Any, Any]:
        return self._again(retry_num)

    def on_unavailable(self, *_: Any, retry_num: int = 0, **__: Any) -> tuple[Any, Any]:
        return self._again(retry_num)

    def on_request_error(self, *_: Any, retry_num: int = 0, **__: Any) -> tuple[Any, Any]:
        return self._again(retry_num)

    def _again(self, retry_num: int) -> tuple[Any, Any]:
        return (self.RETRY_NEXT_HOST, None) if retry_num < _RETRIES else (self.RETHROW, None)


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else type(error).__name__
