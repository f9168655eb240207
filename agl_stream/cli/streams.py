"""`agl-stream streams`: lifecycle, watchdog, span sink and joiner, all in one process or some of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import click

from agl_stream.cli.shared import load_settings
from agl_stream.errors import AglStreamError, UsageError

PARTS = {
    "lifecycle": "agl_stream.streams.lifecycle.app:run_lifecycle",
    "watchdog": "agl_stream.streams.watchdog.app:run_watchdog",
    "sink": "agl_stream.streams.materialise.app:run_sink",
    "joiner": "agl_stream.streams.joiner.app:run_joiner",
}
"""Part -> function (settings, stop, ready) that blocks until ``stop`` is set and raises what ends it earlier."""

_STOP_SECONDS = 30.0


@click.command(short_help="Run lifecycle, watchdog, span sink and joiner.")
@click.option("--only", metavar="PART,...", help=f"Some of them: {', '.join(PARTS)}. Default: all.")
def command(only: str | None) -> None:
    """Run the stream processors.

    \b
    lifecycle   the state of every rollout: accepts, dispatches, retries, closes
    watchdog    time limits, silent and lost workers, offers that nobody took
    sink        everything on the log into the state store
    joiner      spans of closed rollouts into triplets

    Any number of processes may run the same part: they share the partitions. SIGTERM or Ctrl-C stops them after the
    work at hand. A part that fails ends the process with its error, so that a supervisor starts it anew.
    """
    names = _chosen(only)
    settings = load_settings()
    stop = threading.Event()
    _stop_on_signals(stop)
    _collect_rarely()
    parts = [Part(name, settings, stop) for name in names]
    for part in parts:
        part.start()
    told = False
    while not stop.wait(0.05):
        if any(part.failure is not None or not part.is_alive() for part in parts):
            stop.set()
        elif not told and all(part.ready.is_set() for part in parts):
            told = True
            click.echo(f"streams ready ({', '.join(names)})")
    _never_hang()
    for part in parts:
        part.join(_STOP_SECONDS)
    _report(parts)


class Part(threading.Thread):
    """One part on a thread of its own. A daemon: a part that hangs at the end does not keep the process."""

    def __init__(self, name: str, settings: Any, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.ready = threading.Event()
        self.failure: BaseException | None = None
        self._settings = settings
        self._stopping = stop

    def run(self) -> None:
        try:
            _load(PARTS[self.name])(self._settings, self._stopping, self.ready.set)
        except BaseException as error:  # noqa: BLE001 - the main thread tells and ends the process
            self.failure = error


def _chosen(only: str | None) -> list[str]:
    if only is None:
        return list(PARTS)
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in PARTS]
    if unknown or not names:
        raise UsageError(f"--only {only}: choose from {', '.join(PARTS)}")
    return list(dict.fromkeys(names))


def _load(place: str) -> Callable[..., None]:
    import importlib

    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _stop_on_signals(stop: threading.Event) -> None:
    import signal

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


def _collect_rarely() -> None:
    """Events are trees that reference counts free. Every batch makes thousands of them, and at its usual threshold the
    collector of cycles walks them again and again: a tenth of all work of sink and joiner."""
    import gc

    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def _never_hang() -> None:
    """A library's thread that cannot be stopped must not keep a process that is over: a supervisor waits for it."""
    import os

    last_resort = threading.Timer(2 * _STOP_SECONDS, os._exit, (1,))
    last_resort.daemon = True
    last_resort.start()


def _report(parts: list[Part]) -> None:
    """Raise what a part died of; an unexpected error's trace goes to the log, not to the terminal's last line."""
    import logging

    for part in parts:
        error = part.failure
        if isinstance(error, AglStreamError):
            raise type(error)(f"{part.name}: {error}")
        if error is not None:
            logging.getLogger(__name__).error("%s failed", part.name, exc_info=error)
            raise AglStreamError(f"{part.name} failed: {type(error).__name__}: {error}")
    if hanging := [part.name for part in parts if part.is_alive()]:
        raise AglStreamError(f"{', '.join(hanging)} did not stop within {_STOP_SECONDS:g} s")
