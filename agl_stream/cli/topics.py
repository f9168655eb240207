"""`agl-stream topics plan|apply`: the cluster's topics against the catalogue."""

# confluent_kafka.admin defines these names for import and does not list them as exported.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from agl_stream.cli.output import emit_json, output_option
from agl_stream.cli.shared import load_settings
from agl_stream.errors import AglStreamError
from agl_stream.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

    from agl_stream.cli.topic_plan import Change, ExistingTopic

_SIGNS = {"create": "+", "configure": "~", "refuse": "!", "keep": " "}


def existing_topics(admin: AdminClient, metadata: ClusterMetadata, settings: Settings) -> dict[str, ExistingTopic]:
    """Topics of the namespace as they are on the cluster, by name on the wire."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    from agl_stream.cli.topic_plan import ExistingTopic

    names = [name for name in metadata.topics if name.startswith(settings.topic(""))]
    if not names:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    configs = {
        resource.name: {entry.name: entry.value for entry in answer.result(settings.connect_timeout_seconds).values()}
        for resource, answer in admin.describe_configs(resources).items()
    }
    return {name: ExistingTopic(len(metadata.topics[name].partitions), configs.get(name, {})) for name in names}


def apply(settings: Settings) -> list[Change]:
    """Make the topics match the catalogue and return what was done; doing it again changes nothing.

    Returns when every topic is visible in the cluster's metadata. Raises AglStreamError, before anything is
    changed, when a topic is refused; EngineUnreachable when no broker answers.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

    from agl_stream.cli.reach import reach_broker
    from agl_stream.cli.topic_plan import plan

    admin, metadata = reach_broker(settings)
    changes = plan(existing_topics(admin, metadata, settings), settings)
    _raise_refusals(changes)

    created = [change for change in changes if change.action == "create"]
    if created:
        new = [NewTopic(c.topic, c.partitions, settings.replication_factor, config=c.config) for c in created]
        for name, answer in admin.create_topics(new, operation_timeout=30).items():
            try:
                answer.result()
            except KafkaException as error:
                # Somebody else applied at the same moment: the wanted state is reached all the same.
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise AglStreamError(f"topic {name} could not be created: {error.args[0].str()}") from None
    altered = [
        ConfigResource(
            ResourceType.TOPIC,
            change.topic,
            incremental_configs=[
                ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
                for key, value in change.config.items()
            ],
        )
        for change in changes
        if change.action == "configure"
    ]
    if altered:
        for resource, answer in admin.incremental_alter_configs(altered).items():
            try:
                answer.result()
            except KafkaException as error:
                raise AglStreamError(f"topic {resource.name} could not be configured: {error.args[0].str()}") from None
    _wait_until_visible(admin, {change.topic for change in created})
    return changes


def _raise_refusals(changes: list[Change]) -> None:
    """AglStreamError with one sentence for each different reason."""
    names: dict[str, list[str]] = {}
    for change in changes:
        if change.action == "refuse":
            names.setdefault(change.why, []).append(change.topic)
    if names:
        raise AglStreamError("; ".join(f"{', '.join(topics)}: {why}" for why, topics in names.items()))


def _wait_until_visible(admin: AdminClient, names: set[str], timeout_seconds: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while missing := names - set(admin.list_topics(timeout=10).topics):
        if time.monotonic() > deadline:
            raise AglStreamError(f"topics created but not visible after {timeout_seconds:g} s: {sorted(missing)}")
        time.sleep(0.05)


@click.group()
def command() -> None:
    """Compare the cluster's topics with the catalogue (schemas/topics.py), or make them match."""


@command.command("plan")
@output_option
def plan_command(output: str) -> None:
    """Show what `topics apply` would do. Changes nothing; exit status 1 when a topic would be refused."""
    from agl_stream.cli.reach import reach_broker
    from agl_stream.cli.topic_plan import plan

    settings = load_settings()
    admin, metadata = reach_broker(settings)
    changes = plan(existing_topics(admin, metadata, settings), settings)
    _report(changes, output)
    if any(change.action == "refuse" for change in changes):
        click.get_current_context().exit(1)


@command.command("apply")
@output_option
def apply_command(output: str) -> None:
    """Create the topics that are missing and correct the configuration of those that differ."""
    _report(apply(load_settings()), output)


def _report(changes: list[Change], output: str) -> None:
    if output == "json":
        emit_json({"changes": [change.as_dict() for change in changes]})
        return
    for change in changes:
        detail: Any = change.why or ", ".join(f"{key}={value}" for key, value in sorted(change.config.items()))
        partitions = f"{change.partitions} partition{'s' if change.partitions != 1 else ''}"
        click.echo(f"{_SIGNS[change.action]} {change.action:<9} {change.topic} ({partitions}) {detail}".rstrip())
