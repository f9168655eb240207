"""Options that every verb takes, before or after its name, and the settings that come of them."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from agl_stream.settings import Settings

_SETTINGS = {
    "dir": ("--dir", "FOLDER", "Data folder [env AGL_STREAM_DIR; default .agl-stream here or above]."),
    "bootstrap_servers": (
        "--bootstrap-servers",
        "HOST:PORT",
        "Kafka bootstrap servers [env AGL_STREAM_BOOTSTRAP_SERVERS].",
    ),
    "registry_url": ("--registry-url", "URL", "Schema registry [env AGL_STREAM_REGISTRY_URL]."),
    "namespace": ("--namespace", "NAME", "Prefix of topics and groups [env AGL_STREAM_NAMESPACE]."),
}


def add_shared_options(command: click.Command) -> click.Command:
    """Give `command` (and, in a group, its verbs) the shared options it does not declare itself."""
    if isinstance(command, click.Group):
        for name in command.commands:
            add_shared_options(command.commands[name])
    taken = {option for parameter in command.params for option in parameter.opts}
    for name, (option, metavar, text) in _SETTINGS.items():
        if option not in taken:
            command.params.append(
                click.Option(
                    [option, name],
                    metavar=metavar,
                    help=text,
                    expose_value=False,
                    callback=_remember,
                    allow_from_autoenv=False,  # settings have environment names of their own
                )
            )
    if "-v" not in taken:
        command.params.append(
            click.Option(
                ["-v", "--verbose"],
                count=True,
                allow_from_autoenv=False,
                expose_value=False,
                callback=_set_log_level,
                help="Log more on stderr (-vv: everything).",
            )
        )
    return command


def _overrides(context: click.Context) -> dict[str, Any]:
    return context.find_root().meta.setdefault("agl_stream.overrides", {})


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        _overrides(context)[str(parameter.name)] = value


def _set_log_level(context: click.Context, parameter: click.Parameter, count: int) -> None:
    # Given both before and after the verb, the two add up.
    meta = context.find_root().meta
    meta["agl_stream.verbose"] = meta.get("agl_stream.verbose", 0) + count
    libraries = logging.DEBUG if meta["agl_stream.verbose"] > 1 else logging.WARNING
    logging.basicConfig(
        stream=sys.stderr, level=libraries, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    # What libraries tell of themselves at INFO would bury what this system has to tell.
    own = [logging.WARNING, logging.INFO, logging.DEBUG][min(meta["agl_stream.verbose"], 2)]
    logging.getLogger("agl_stream").setLevel(own)


def load_settings(**overrides: Any) -> Settings:
    """Settings for the verb that is running: its own `overrides`, then the shared options, then the rest.

    An override of None counts as not given. Raises SettingError.
    """
    return load_settings_with_sources(**overrides)[0]


def load_settings_with_sources(**overrides: Any) -> tuple[Settings, dict[str, str]]:
    """As `load_settings`, with where each value comes from: argument, environment, folder, default."""
    context = click.get_current_context(silent=True)
    shared = _overrides(context) if context is not None else {}
    given = {name: value for name, value in overrides.items() if value is not None}
    return Settings.load_with_sources(**{**shared, **given})
