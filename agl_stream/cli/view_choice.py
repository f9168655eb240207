"""Who answers: the state store where the running system is this folder's, else the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agl_stream.cli.log_view import LogView
from agl_stream.cli.store_view import StoreView
from agl_stream.settings import ENDPOINTS_FILE, Settings

if TYPE_CHECKING:
    from agl_stream.cli.log_reader import LogReader
    from agl_stream.cli.views import SystemView


def has_own_store(settings: Settings) -> bool:
    """Whether the folder's state store is that of the system the settings point to.

    It is not when somebody names another broker inside a data folder, and not when nothing runs in it: a store
    without a running sink grows old without telling.
    """
    if settings.store_url:
        return True
    try:
        endpoints = json.loads((settings.folder / ENDPOINTS_FILE).read_text())
    except (OSError, ValueError):
        return False
    return endpoints.get("bootstrap_servers") == settings.bootstrap_servers


@contextmanager
def open_view(settings: Settings, reader: LogReader) -> Iterator[SystemView]:
    """The view to ask, closed afterwards."""
    if not has_own_store(settings):
        yield LogView(settings, reader)
        return
    from agl_stream.streams.store import open_store

    store = open_store(settings, read_only=True)
    try:
        yield StoreView(store)
    finally:
        store.close()
