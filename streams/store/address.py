"""Where the state store of some settings is."""

from __future__ import annotations

from pathlib import Path

from agl_stream.errors import SettingError
from agl_stream.settings import Settings


def is_cassandra(settings: Settings) -> bool:
    return settings.store_url.startswith("cassandra://")


def sqlite_path(settings: Settings) -> Path:
    """The embedded store's file. Raises SettingError for an address that names no kind of store."""
    url = settings.store_url
    if not url:
        return settings.folder / "state.db"
    if url.startswith("sqlite:///"):
        return Path(url.removeprefix("sqlite:///"))
    raise SettingError(
        f"AGL_STREAM_STORE_URL={url!r} is not known; leave it empty or give sqlite:///PATH or "
        "cassandra://HOST:PORT/KEYSPACE"
    )
