"""The codec of each request and its response, made from kio's definitions when it is first needed.

Making one costs some 8 ms of processor time, almost all of it kio's import, and 0.1 MB; all that are spoken would cost
a start 1.5 s and 19 MB, and a client uses twenty of them. A server makes them beside its event loop, see CodecMaker.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

from agl_stream.infra.embedded.protocol.wire import Read, Write, entity_codec


class Codec(NamedTuple):
    """Of one version of an API."""

    flexible_request_header: bool
    read_request: Read
    flexible_response_header: bool
    write_response: Write


_made: dict[tuple[str, int], Codec] = {}


def is_made(name: str, version: int) -> bool:
    """Whether codec_of() returns at once."""
    return (name, version) in _made


def codec_of(name: str, version: int) -> Codec:
    """The codec of an API by kio's module name. Makes it, which takes a while, unless it is there; safe in a thread."""
    codec = _made.get((name, version))
    if codec is None:
        codec = _made[name, version] = _make(name, version)
    return codec


def _make(name: str, version: int) -> Codec:
    prefix = "".join(part.title() for part in name.split("_"))
    module: Any = importlib.import_module(f"kio.schema.{name}.v{version}")
    request, response = getattr(module, f"{prefix}Request"), getattr(module, f"{prefix}Response")
    return Codec(
        request.__header_schema__.__flexible__,
        entity_codec(request)[0],
        response.__header_schema__.__flexible__,
        entity_codec(response)[1],
    )


def _import_message_base() -> None:
    """Import what all of kio's messages need now, and not in the middle of the first request.

    kio imports hypothesis where that is installed, to register strategies nobody asks it for here. That costs a
    developer's broker 0.2 s and 18 MB, so it is hidden for the moment of the import.
    """
    hide = "hypothesis" not in sys.modules
    if hide:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        if hide:
            del sys.modules["hypothesis"]


_import_message_base()
