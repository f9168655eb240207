"""Every setting, declared once: name, default, meaning.

``Settings.load`` takes each value from the first of: argument, environment (``AGL_STREAM_<NAME>``), the
``endpoints.json`` that a running ``agl-stream up`` keeps in its folder, default. ``source_of`` tells which;
``agl-stream doctor`` and docs/operations.md are made from the same declaration.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from agl_stream.errors import SettingError

ENV_PREFIX = "AGL_STREAM_"
DEFAULT_FOLDER = ".agl-stream"
ENDPOINTS_FILE = "endpoints.json"

SHARED_BY_FOLDER = (
    "bootstrap_servers",
    "registry_url",
    "gateway_url",
    "upstream_url",
    "upstream_model",
    "namespace",
    "partitions",
    "store_url",
    "blob_root",
)
"""Settings of a running system that whoever works in its folder has to share; none is secret."""

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _setting(
    default: Any, doc: str, *, secret: bool = False, least: float | None = None, pattern: str | None = None
) -> Any:
    """``least``: the smallest number allowed; None: above zero. ``pattern``: what a text must match as a whole."""
    return field(default=default, metadata={"doc": doc, "secret": secret, "least": least, "pattern": pattern})


@dataclass(frozen=True)
class Settings:
    """An immutable set of values; ``load`` makes one, ``dataclasses.replace`` varies one."""

    # where things are
    dir: str = _setting(DEFAULT_FOLDER, "Data folder. Default: .agl-stream here or in the nearest parent that has one.")
    bootstrap_servers: str = _setting("127.0.0.1:9092", "Kafka bootstrap servers, host:port[,host:port].")
    registry_url: str = _setting("http://127.0.0.1:8081", "Confluent-compatible schema registry.")
    gateway_url: str = _setting("http://127.0.0.1:4747", "The gateway, as agents reach it.")
    upstream_url: str = _setting("http://127.0.0.1:8000/v1", "OpenAI-compatible inference server behind the gateway.")
    upstream_model: str = _setting("policy", "Model agents are given when their rollout names no resources.")
    upstream_api_key: str = _setting("", "Bearer key sent to the inference server.", secret=True)
    gateway_token: str = _setting(
        "", "Bearer token that callers of the gateway must show; needed beyond loopback.", secret=True
    )
    store_url: str = _setting("", "State store; empty: SQLite at <dir>/state.db. cassandra://HOST:PORT/KEYSPACE.")
    blob_root: str = _setting("", "Folder or fsspec address of claim-checked payloads; empty: <dir>/blobs.")
    engines_dir: str = _setting(
        "", "Where jars of real engines are kept; empty: agl-stream/engines in the user's cache folder."
    )
    namespace: str = _setting("agl", "Prefix of topics and consumer groups.", pattern="[A-Za-z0-9._-]{1,200}")

    # how the connections are protected
    kafka_security_protocol: str = _setting(
        "PLAINTEXT",
        "How Kafka is spoken to: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL.",
        pattern="PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL",
    )
    kafka_sasl_mechanism: str = _setting(
        "SCRAM-SHA-512",
        "How users prove who they are: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512.",
        pattern="PLAIN|SCRAM-SHA-256|SCRAM-SHA-512",
    )
    kafka_username: str = _setting("", "User of the SASL protocols.")
    kafka_password: str = _setting("", "Password of that user.", secret=True)
    kafka_ca_file: str = _setting("", "PEM file of the authority that signed the brokers; empty: the system's.")
    kafka_certificate_file: str = _setting("", "PEM file of this client's own certificate, where brokers ask for one.")
    kafka_key_file: str = _setting("", "PEM file of the key of that certificate.")
    kafka_key_password: str = _setting("", "Password of that key.", secret=True)
    registry_username: str = _setting("", "User of the schema registry, where it asks for one.")
    registry_password: str = _setting("", "Password of that user.", secret=True)
    registry_ca_file: str = _setting("", "PEM file of the authority that signed the registry; empty: the system's.")
    register_schemas: bool = _setting(
        False, "Whether processes register schemas that the registry lacks; for development. Else `schemas apply` does."
    )

    # Kafka Connect
    connect_url: str = _setting("http://127.0.0.1:8083", "A worker of Kafka Connect, for `agl-stream connect`.")
    connect_registry_url: str = _setting("", "The registry as Connect's workers reach it; empty: as registry_url.")
    connect_jdbc_url: str = _setting(
        "jdbc:postgresql://127.0.0.1:5432/agl",
        "The sinks' database as workers reach it; its password is SINK_DATABASE_PASSWORD in their environment.",
    )
    connect_jdbc_username: str = _setting("postgres", "User of that database.")
    connect_files_dir: str = _setting("", "Folder where workers write files; empty: <dir>/exports.")
    store_username: str = _setting("", "User of the state store, where Cassandra asks for one.")
    store_password: str = _setting("", "Password of that user.", secret=True)
    store_tls: bool = _setting(False, "Whether Cassandra is spoken to over TLS.")
    store_ca_file: str = _setting("", "PEM file of the authority that signed its nodes; empty: the system's.")
    store_certificate_file: str = _setting("", "PEM file of this client's own certificate, where nodes ask for one.")
    store_key_file: str = _setting("", "PEM file of the key of that certificate.")
    store_key_password: str = _setting("", "Password of that key.", secret=True)

    # shape of the log
    partitions: int = _setting(8, "Partitions of every topic that is keyed by rollout or group.")
    replication_factor: int = _setting(1, "Replicas of each topic; 3 on a real cluster.")
    inline_limit_bytes: int = _setting(262_144, "Payloads above this go to the blob store (claim check).")
    max_record_bytes: int = _setting(8_388_608, "Largest record a producer sends.")

    # the state store on Cassandra
    store_span_days: float = _setting(
        0.0, "Days that spans stay in a Cassandra store, set by `agl-stream store apply`; 0: for ever.", least=0
    )

    # producing
    delivery_timeout_seconds: float = _setting(120.0, "How long an event may wait for its acknowledgement.")
    connect_timeout_seconds: float = _setting(10.0, "How long a process looks for its engines at start.")
    linger_ms: float = _setting(5.0, "How long a producer gathers events into a batch.", least=0)
    compression: str = _setting(
        "lz4", "Compression of produced batches: none, gzip, snappy, lz4, zstd.", pattern="none|gzip|snappy|lz4|zstd"
    )
    buffer_events: int = _setting(100_000, "Events a producer holds unacknowledged before it blocks its caller.")
    buffer_bytes: int = _setting(134_217_728, "Bytes a producer holds unacknowledged before it blocks its caller.")
    max_task_bytes: int = _setting(16_777_216, "Longest line of a task file; above inline_limit_bytes by claim check.")

    # the gateway
    gateway_allow_unrecorded: bool = _setting(
        False, "Whether the gateway passes calls whose path names no rollout; they are recorded for nobody."
    )
    gateway_linger_ms: float = _setting(
        0.0, "As linger_ms, for spans whose call waits for the acknowledgement.", least=0
    )
    gateway_max_body_bytes: int = _setting(16_777_216, "Largest request body the gateway takes.")
    gateway_max_answer_bytes: int = _setting(67_108_864, "Largest answer the gateway takes from the upstream.")
    gateway_drain_seconds: float = _setting(30.0, "How long a stopping gateway waits for calls in flight.", least=0)
    upstream_patience_seconds: float = _setting(
        60.0, "How long a call waits for an upstream that is away or busy.", least=0
    )
    upstream_timeout_seconds: float = _setting(600.0, "Longest silence of the upstream within a call.")

    # consuming
    session_timeout_seconds: float = _setting(10.0, "Silence after which a consumer group drops a member.")
    reject_limit_consecutive: int = _setting(1000, "Consecutive rejects on a partition that stop a consumer.")

    # running agents
    runner_slots: int = _setting(8, "Rollouts a runner runs at once.")
    heartbeat_seconds: float = _setting(5.0, "How often a worker says that it lives and what it holds.")
    drain_seconds: float = _setting(30.0, "How long a stopping runner lets its rollouts finish.", least=0)
    resources_wait_seconds: float = _setting(
        30.0, "How long an attempt waits for resources not on the log yet.", least=0
    )

    # lifecycle and watchdog
    lifecycle_store: str = _setting(
        "memory", "Where the lifecycle keeps open rollouts: memory or rocksdb.", pattern="memory|rocksdb"
    )
    lifecycle_instance: str = _setting(
        "", "Stable name of a lifecycle process in its group; empty: the first free one of this machine."
    )
    closed_grace_seconds: float = _setting(600.0, "How long the lifecycle keeps a rollout after its end.", least=0)
    early_hold_seconds: float = _setting(60.0, "How long an event waits for the rollout it speaks of.", least=0)
    watchdog_interval_seconds: float = _setting(1.0, "How often the watchdog looks at open attempts.")
    claim_lease_seconds: float = _setting(30.0, "How long an offered attempt may stay unclaimed before it is renewed.")
    worker_lost_seconds: float = _setting(
        60.0, "Silence of a runner that has sent heartbeats after which its attempts are given up; 0: never.", least=0
    )
    stall_seconds: float = _setting(60.0, "Standstill with work waiting after which a stream process gives up.")

    @classmethod
    def load(cls, **overrides: Any) -> Settings:
        """Settings from arguments (None counts as not given), environment, endpoints file, defaults.

        Raises SettingError naming the variable when a value does not parse.
        """
        return cls.load_with_sources(**overrides)[0]

    @classmethod
    def load_with_sources(cls, **overrides: Any) -> tuple[Settings, dict[str, str]]:
        """As ``load``; the second value says for each setting: argument, environment, folder or default."""
        known = {f.name: f for f in fields(cls)}
        unknown = [name for name in overrides if name not in known]
        if unknown:
            raise SettingError(f"unknown setting {unknown[0]!r}; known are {', '.join(known)}")
        values: dict[str, Any] = {}
        sources: dict[str, str] = dict.fromkeys(known, "default")
        for name, spec in known.items():
            if overrides.get(name) is not None:
                values[name], sources[name] = overrides[name], "argument"
            elif (text := os.environ.get(ENV_PREFIX + name.upper())) not in (None, ""):
                values[name], sources[name] = _parse(spec, text), "environment"
        folder = Path(values["dir"]) if "dir" in values else _find_folder()
        values["dir"] = str(folder.expanduser().absolute())
        for name, value in _read_endpoints(folder).items():
            if sources[name] == "default" and value:
                values[name], sources[name] = _parse(known[name], str(value)), "folder"
        for name, value in values.items():
            _check(known[name], value)
        return cls(**values), sources

    @property
    def folder(self) -> Path:
        return Path(self.dir)

    def topic(self, name: str) -> str:
        """Name of a topic on the wire."""
        return f"{self.namespace}.{name}"

    def group(self, name: str) -> str:
        """Name of a consumer group on the wire."""
        return f"{self.namespace}.{name}"

    def blob_address(self) -> str:
        return self.blob_root or str(self.folder / "blobs")


def as_environment(values: Mapping[str, object]) -> dict[str, str]:
    """The variables from which another process loads these settings."""
    return {ENV_PREFIX + name.upper(): str(value) for name, value in values.items()}


def _parse(spec: Any, text: str) -> Any:
    kind = type(spec.default)
    try:
        return _SWITCH[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        wanted = f"one of {', '.join(_SWITCH)}" if kind is bool else f"a {kind.__name__}"
        raise SettingError(
            f"{ENV_PREFIX}{spec.name.upper()}={text!r} is not {wanted}; {spec.metadata['doc']}"
        ) from None


def _check(spec: Any, value: Any) -> None:
    """Raises SettingError for a value of the right type that nothing could work with."""
    least, pattern = spec.metadata["least"], spec.metadata["pattern"]
    wanted = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value) or (value <= 0 if least is None else value < least):
            wanted = "above 0" if least is None else f"{least:g} or more"
    elif pattern is not None and not re.fullmatch(pattern, str(value)):
        wanted = pattern.replace("|", ", ") if "[" not in pattern else f"text of the form {pattern}"
    if wanted is not None:
        raise SettingError(f"{ENV_PREFIX}{spec.name.upper()}={value!r} must be {wanted}; {spec.metadata['doc']}")


def _find_folder() -> Path:
    here = Path.cwd()
    for place in (here, *here.parents):
        if (place / DEFAULT_FOLDER).is_dir():
            return place / DEFAULT_FOLDER
    return here / DEFAULT_FOLDER


def _read_endpoints(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / ENDPOINTS_FILE).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: found[name] for name in SHARED_BY_FOLDER if isinstance(found.get(name), str | int)}
