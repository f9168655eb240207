"""Large payloads leave the event: above the inline limit they go to the blob store, the event keeps a reference."""

from __future__ import annotations

import threading
from typing import Any

from agl_stream.errors import FolderNotWritable
from agl_stream.schemas.blobs import BlobStore
from agl_stream.settings import Settings


class ClaimCheck:
    """``keep`` decides and stores. The store is opened when the first large payload comes. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._address = settings.blob_address()
        self._limit = settings.inline_limit_bytes
        self._store: BlobStore | None = None
        self._lock = threading.Lock()

    def too_large(self, length: int) -> bool:
        """Whether a payload of ``length`` bytes may not stay in its event."""
        return length > self._limit

    def keep(self, payload: bytes) -> dict[str, Any]:
        """Store and return the BlobRef; blocks on the store. Raises FolderNotWritable."""
        try:
            with self._lock:
                if self._store is None:
                    self._store = BlobStore(self._address)
                store = self._store
            return store.put(payload)
        except OSError as error:
            raise FolderNotWritable(
                f"the blob store at {self._address} cannot be written ({error}); set AGL_STREAM_BLOB_ROOT"
            ) from None
