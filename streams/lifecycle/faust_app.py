"""The Faust application of the lifecycle: one agent over three topics. Only wiring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faust
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from faust.tables import TableManager

from agl_stream import connections
from agl_stream.errors import EngineUnreachable, SettingError
from agl_stream.producers.client_logging import client_logger
from agl_stream.settings import Settings
from agl_stream.streams.lifecycle.batch import INPUTS

STORES = ("memory", "rocksdb")
_NEVER_SECONDS = 30 * 86_400.0


def changelog_topic(settings: Settings) -> str:
    """Full name of the table's changelog."""
    return settings.topic("lifecycle-state")


def prepare_topics(settings: Settings) -> int:
    """Check the input topics, create the changelog when it is not there; the number of partitions they share.

    Raises EngineUnreachable when the broker does not answer or a topic is missing, SettingError when the partition
    counts differ: a rollout's events could not meet.
    """
    if settings.lifecycle_store not in STORES:
        raise SettingError(f"AGL_STREAM_LIFECYCLE_STORE={settings.lifecycle_store!r} is none of {', '.join(STORES)}")
    refusal = connections.Refusal(settings)
    admin = AdminClient(
        {**connections.librdkafka(settings), "client.id": "agl-lifecycle-admin", "error_cb": refusal.note},
        logger=client_logger("lifecycle-admin"),
    )
    changelog = changelog_topic(settings)
    try:
        found = connections.first_answer(admin, settings, refusal).topics
        counts = {name: len(found[name].partitions) for name in map(settings.topic, INPUTS) if name in found}
        partitions = _common_count(settings, counts)
        if changelog not in found:
            _create(admin, NewTopic(changelog, partitions, settings.replication_factor, config=_config(settings)))
        elif len(found[changelog].partitions) != partitions:
            raise SettingError(
                f"{changelog} has {len(found[changelog].partitions)} partitions and {settings.topic(INPUTS[0])} has "
                f"{partitions}; delete {changelog} to have the lifecycle's table built anew"
            )
    except KafkaException as error:
        raise EngineUnreachable(
            f"the broker at {settings.bootstrap_servers} did not create {changelog} ({error.args[0].str()}); "
            "is it up? See AGL_STREAM_BOOTSTRAP_SERVERS"
        ) from None
    return partitions


def _common_count(settings: Settings, counts: dict[str, int]) -> int:
    for name in map(settings.topic, INPUTS):
        if name not in counts:
            raise EngineUnreachable(f"topic {name} does not exist; run `agl-stream topics apply`")
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise SettingError(
            f"the lifecycle's topics must have the same number of partitions, but have: {shown}. Delete the one that "
            "differs and run `agl-stream topics apply`"
        )
    return next(iter(counts.values()))


def _config(settings: Settings) -> dict[str, str]:
    return {"cleanup.policy": "compact", "max.message.bytes": str(settings.max_record_bytes + 1024)}


def _create(admin: AdminClient, topic: NewTopic) -> None:
    # another process may create it at the same moment
    try:
        admin.create_topics([topic])[topic.topic].result(30.0)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


class _NoTables(TableManager):
    """Starts without the second that Faust waits for tables to be declared: there are none."""

    async def on_start(self) -> None:
        await self._update_channels()
        await self.recovery.start()


def build_app(settings: Settings, *, instance: str, partitions: int, folder: Path) -> tuple[Any, Any]:
    """(app, channel of the inputs). ``instance`` names this process in the group for ever.

    Offsets are committed by the caller, for Faust's own bookkeeping loses its way where a rebalance meets records
    in flight: it acknowledges records that it skips. So the topics have no acks and Faust finds nothing to commit.
    """
    app = faust.App(
        settings.group("lifecycle"),
        **connections.faust(settings),
        datadir=folder / instance,
        processing_guarantee="at_least_once",
        web_enabled=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        topic_partitions=partitions,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=instance,
        consumer_max_fetch_size=settings.max_record_bytes + 1024,
        broker_session_timeout=settings.session_timeout_seconds,
        broker_heartbeat_interval=min(1.0, settings.session_timeout_seconds / 6),
        broker_commit_interval=_NEVER_SECONDS,
        TableManager=_NoTables,
    )
    inputs = app.topic(
        *(settings.topic(name) for name in INPUTS),
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        partitions=partitions,
        acks=False,
        allow_empty=True,
    )
    return app, inputs
