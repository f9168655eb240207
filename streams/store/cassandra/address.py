"""``cassandra://HOST[:PORT][,HOST[:PORT]...]/KEYSPACE[?option=value&...]``: where a Cassandra state store is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from agl_stream.errors import SettingError

DEFAULT_PORT = 9042
_OPTIONS = ("replication", "local_dc")
_FORM = "cassandra://HOST:PORT[,HOST:PORT]/KEYSPACE[?replication=3 or DC:3,DC:3][&local_dc=DC]"


@dataclass(frozen=True)
class Address:
    """Contact points, keyspace, and what the address says of data centres.

    ``replication``: copies by data centre, under the empty name for the local one; only read when the keyspace is
    made. ``local_dc``: the data centre whose nodes are asked; empty: that of the first contact point.
    """

    contact_points: tuple[tuple[str, int], ...]
    keyspace: str
    replication: tuple[tuple[str, int], ...]
    local_dc: str = ""

    def __str__(self) -> str:
        return f"cassandra://{','.join(f'{host}:{port}' for host, port in self.contact_points)}/{self.keyspace}"


def parse_address(url: str, *, copies: int) -> Address:
    """The address in ``url``; ``copies`` of everything where it does not say. SettingError names what is wrong."""
    parts = urlsplit(url)
    points = tuple(_contact_point(url, place) for place in parts.netloc.split(","))
    keyspace = parts.path.strip("/")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,47}", keyspace):
        raise _wrong(url, f"{keyspace!r} is no keyspace name (a-z, 0-9 and _, at most 48, a letter first)")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise _wrong(url, f"{unknown[0]!r} is no option; there are {' and '.join(_OPTIONS)}")
    return Address(points, keyspace, _replication(url, options.get("replication"), copies), options.get("local_dc", ""))


def _contact_point(url: str, place: str) -> tuple[str, int]:
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = place.partition(":")
    if not host or "@" in host or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
        raise _wrong(url, f"{place!r} is no HOST:PORT")
    return host, int(port or DEFAULT_PORT)


def _replication(url: str, text: str | None, copies: int) -> tuple[tuple[str, int], ...]:
    if text is None:
        return (("", copies),)
    found: dict[str, int] = {}
    for entry in text.split(","):
        centre, _, count = entry.rpartition(":")
        if not count.isdecimal() or not int(count) or not re.fullmatch(r"[A-Za-z0-9_.-]*", centre):
            raise _wrong(url, f"replication={text} is neither a number nor DC:NUMBER[,DC:NUMBER]")
        found[centre] = int(count)
    if "" in found and len(found) > 1:
        raise _wrong(url, f"replication={text} leaves a data centre without a name")
    return tuple(found.items())


def _wrong(url: str, what: str) -> SettingError:
    return SettingError(f"AGL_STREAM_STORE_URL={url!r}: {what}; the form is {_FORM}")
