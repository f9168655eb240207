"""Claim check: large payloads lie in a content-addressed store, the event carries hash and length."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import fsspec

from agl_stream.errors import BlobCorrupt


class BlobStore:
    """Blobs below one root (a folder or any fsspec address). Writing the same bytes twice writes once.

    ``max_bytes`` bounds what ``get`` reads, whatever an event claims.
    """

    def __init__(self, root: str, *, max_bytes: int = 1 << 30) -> None:
        self._fs, self._root = fsspec.core.url_to_fs(root)
        self._max_bytes = max_bytes

    def put(self, data: bytes) -> dict[str, Any]:
        """Store ``data`` and return its BlobRef. The blob is complete before its name exists."""
        digest = hashlib.sha256(data).hexdigest()
        uri = f"{digest[:2]}/{digest}"
        path = f"{self._root}/{uri}"
        if not self._fs.exists(path):
            self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            partial = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
            with self._fs.open(partial, "wb") as out:
                out.write(data)
            self._fs.mv(partial, path)
        return {"uri": uri, "sha256": digest, "length": len(data)}

    def get(self, ref: dict[str, Any]) -> bytes:
        """The bytes of a BlobRef. Raises BlobCorrupt when they are missing, too long or do not match the hash."""
        uri, length = str(ref["uri"]), int(ref["length"])
        if ".." in uri.split("/") or uri.startswith("/") or length > self._max_bytes:
            raise BlobCorrupt(f"blob reference {uri!r} of {length} bytes is refused")
        try:
            with self._fs.open(f"{self._root}/{uri}", "rb") as source:
                data = source.read(length + 1)
        except FileNotFoundError:
            raise BlobCorrupt(
                f"blob {uri} is missing below {self._root}; set AGL_STREAM_BLOB_ROOT to where producers put blobs"
            ) from None
        if len(data) != length or hashlib.sha256(data).hexdigest() != ref["sha256"]:
            raise BlobCorrupt(f"blob {uri} below {self._root} does not match its hash")
        return data
