"""`agl-stream doctor`: whether everything a verb needs is in place, and what to do where it is not."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import click

from agl_stream.cli.output import emit_json, output_option, table
from agl_stream.cli.shared import load_settings_with_sources
from agl_stream.cli.version import versions
from agl_stream.errors import AglStreamError, UsageError
from agl_stream.settings import Settings


def settings_report(settings: Settings, sources: dict[str, str]) -> list[dict[str, Any]]:
    """Each setting: name, environment name, value (secrets only as set or not), source, meaning."""
    return [
        {
            "name": spec.name,
            "environment": f"AGL_STREAM_{spec.name.upper()}",
            "value": _shown(spec, getattr(settings, spec.name)),
            "source": sources[spec.name],
            "meaning": spec.metadata["doc"],
        }
        for spec in fields(settings)
    ]


def _shown(spec: Any, value: Any) -> Any:
    if spec.metadata["secret"]:
        return "(set)" if value else ""
    return value


def check_broker(settings: Settings) -> str:
    """Raises EngineUnreachable; else says what answers."""
    from agl_stream.cli.reach import reach_broker

    _, metadata = reach_broker(settings)
    own = [name for name in metadata.topics if name.startswith(settings.topic(""))]
    hint = "" if own else "; `agl-stream topics apply` creates them"
    return f"{len(metadata.brokers)} broker(s), {len(own)} topics of namespace {settings.namespace}{hint}"


def check_registry(settings: Settings) -> str:
    """Raises EngineUnreachable; else says what answers."""
    from agl_stream import connections

    subjects = connections.registry_client(settings, register=False).subjects()
    own = [subject for subject in subjects if subject.startswith(settings.topic(""))]
    hint = "" if own else "; `agl-stream schemas apply` fills it"
    return f"{len(own)} subjects of namespace {settings.namespace}{hint}"


def check_gateway(settings: Settings) -> str:
    """Raises EngineUnreachable; else says that it answers."""
    _get(settings.gateway_url.rstrip("/") + "/health", "AGL_STREAM_GATEWAY_URL")
    return "answers"


def check_group(settings: Settings, name: str) -> str:
    """Raises AglStreamError when nobody is in the consumer group `name` (without namespace); else says who is."""
    from confluent_kafka import KafkaException

    from agl_stream.cli.reach import broker_unreachable, reach_broker

    admin, _ = reach_broker(settings)
    group = settings.group(name)
    try:
        found = admin.describe_consumer_groups([group])[group].result(timeout=settings.connect_timeout_seconds)
    except KafkaException as error:
        raise broker_unreachable(settings, error.args[0].str()) from None
    except TimeoutError:
        raise broker_unreachable(settings, "no answer in time") from None
    if not found.members:
        raise AglStreamError(f"nobody is in consumer group {group}: start `agl-stream streams` (or `runner`)")
    return f"{len(found.members)} member(s) in {group}"


def check_store(settings: Settings) -> str:
    """Raises EngineUnreachable, or SettingError when its layout is not ours; else says what it holds."""
    from contextlib import closing

    from agl_stream.streams.store import open_store

    with closing(open_store(settings, read_only=True)) as store:
        applied = store.applied_offsets()
    return f"{settings.store_url or 'SQLite in the data folder'}, {len(applied)} partitions applied"


def check_links(settings: Settings) -> str:
    """Says which connections go in the clear to other machines; it is for the reader to judge."""
    from urllib.parse import urlsplit

    from agl_stream import connections

    connections.librdkafka(settings)
    connections.registry_config(settings)
    clear = []
    servers = settings.bootstrap_servers.split(",")
    if not settings.kafka_security_protocol.endswith("SSL") and not all(map(_is_here, servers)):
        clear.append("Kafka (AGL_STREAM_KAFKA_SECURITY_PROTOCOL=SASL_SSL)")
    registry = urlsplit(settings.registry_url)
    if registry.scheme == "http" and not _is_here(registry.netloc):
        clear.append("registry (an https address)")
    store = urlsplit(settings.store_url)
    if store.scheme == "cassandra" and not settings.store_tls and not all(map(_is_here, store.netloc.split(","))):
        clear.append("state store (AGL_STREAM_STORE_TLS=1)")
    return f"in the clear to other machines: {', '.join(clear)}" if clear else "none leaves this machine in the clear"


def _is_here(address: str) -> bool:
    host = address.rpartition("@")[2].rsplit(":", 1)[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def check_folder(settings: Settings) -> str:
    """Raises AglStreamError when the data folder exists and cannot be written."""
    folder = settings.folder
    if not folder.exists():
        return f"{folder} does not exist yet; `agl-stream up` makes it"
    if not os.access(folder, os.W_OK | os.X_OK):
        raise AglStreamError(f"{folder} cannot be written: choose another with AGL_STREAM_DIR (--dir)")
    running = "a system runs in it" if (folder / "endpoints.json").exists() else "no system runs in it"
    return f"{folder} can be written; {running}"


def check_train_extra(settings: Settings) -> str:
    """Says whether the trainer can run; its absence is no fault of a machine that only runs agents."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers", "verl") if find_spec(name) is None]
    if missing:
        return f"not installed ({', '.join(missing)}): `pip install agl-stream[train]` for trainer, serve and demo"
    return "installed"


def _get(url: str, variable: str) -> bytes:
    from agl_stream.errors import EngineUnreachable

    if not url.startswith(("http://", "https://")):
        raise EngineUnreachable(f"{url} is not an http address: correct {variable}")
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 (scheme checked above)
            return answer.read()
    except (OSError, urllib.error.URLError) as error:
        raise EngineUnreachable(
            f"{url} does not answer ({error}): start it with `agl-stream up`, or set {variable}"
        ) from None


_CHECKS = {
    "broker": check_broker,
    "registry": check_registry,
    "store": check_store,
    "gateway": check_gateway,
    "links": check_links,
    "folder": check_folder,
    "train extra": check_train_extra,
}


def _chosen(only: str | None) -> list[str]:
    if only is None:
        return list(_CHECKS)
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in _CHECKS]:
        raise UsageError(f"--only {only}: {unknown[0]} is no check; choose from {', '.join(_CHECKS)}")
    return names


@click.command()
@click.option("--only", metavar="CHECK,...", help=f"Some of the checks: {', '.join(_CHECKS)}. Default: all.")
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Check that consumer group NAME has a member.")
@output_option
def command(only: str | None, groups: tuple[str, ...], output: str) -> None:
    """Check every setting and where it comes from, whether broker, registry, state store and gateway
    answer, which links are in the clear, the data folder, and versions.

    Exit status 3 when an engine cannot be reached, 1 when something else is wrong. As a probe of one process:
    `agl-stream doctor --only registry --group joiner`.
    """
    chosen: dict[str, Callable[[Settings], str]] = {name: _CHECKS[name] for name in _chosen(only)}
    for group in groups:
        chosen[f"group {group}"] = partial(check_group, name=group)
    settings, sources = load_settings_with_sources()
    checks: dict[str, dict[str, Any]] = {}
    exit_code = 0
    for name, check in chosen.items():
        try:
            checks[name] = {"ok": True, "detail": check(settings)}
        except AglStreamError as error:
            checks[name] = {"ok": False, "detail": str(error)}
            exit_code = max(exit_code, error.exit_code)
    report = settings_report(settings, sources)
    if output == "json":
        emit_json({"ok": not exit_code, "checks": checks, "settings": report, "versions": versions()})
    else:
        for name, result in checks.items():
            click.echo(f"{'ok  ' if result['ok'] else 'FAIL'} {name}: {result['detail']}")
        click.echo("\nsettings")
        click.echo(table(["name", "value", "source"], [[s["name"], s["value"], s["source"]] for s in report]))
        click.echo("\nversions")
        click.echo(table(["package", "version"], [[name, v or "(not installed)"] for name, v in versions().items()]))
    click.get_current_context().exit(exit_code)
