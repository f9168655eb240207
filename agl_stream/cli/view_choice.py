"""Who answers: the state store where the running system is this folder's, else the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agl_stream.cli.log_view import LogView
from agl_stream.settings import Settings

if TYPE_CHECKING:
    from agl_stream.cli.log_reader import LogReader
    from agl_stream.cli.views import SystemView


@contextmanager
def open_view(settings: Settings, reader: LogReader) -> Iterator[SystemView]:
    """The view to ask, closed afterwards."""
    yield LogView(settings, reader)
