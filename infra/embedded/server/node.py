"""The broker's state, apart from its sockets: what the request handlers work on."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.groups.coordinator import GroupCoordinator
from agl_stream.infra.embedded.groups.offsets import OffsetStore
from agl_stream.infra.embedded.log.flushing import Flusher
from agl_stream.infra.embedded.server.codec_maker import CodecMaker
from agl_stream.infra.embedded.server.metrics import ServerMetrics
from agl_stream.infra.embedded.server.quotas import ClientQuotas
from agl_stream.infra.embedded.server.topics import Catalogue
from agl_stream.infra.embedded.storage import FORMAT, Reserve, check_format, is_marked, mark_format
from agl_stream.infra.embedded.transactions.coordinator import TransactionCoordinator

logger = logging.getLogger(__name__)

LEADER_EPOCH = 0
"""There is one broker, so leadership never changes."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    client_id: str
    host: str
    version: int
    """Version of the API that the request uses."""
    request_bytes: int
    """Size of its frame."""


class Unanswered(dict[str, Any]):
    """The answer to a client that wants none; what it says about throttling counts all the same."""


class Node:
    """Topics, groups, offsets and transactions of one data folder. Lives in one event loop."""

    def __init__(self, folder: Path, config: BrokerConfig) -> None:
        """Recover everything in `folder`, also one of an older format; raises DamagedFile or OSError."""
        found_format = check_format(folder)
        self.folder = folder
        self.config = config
        self.host = ""
        self.port = 0
        self.reserve = Reserve(folder)
        self.catalogue = Catalogue(folder, config, self.reserve)
        self.offsets = OffsetStore(folder / "offsets.jsonl")
        self.transactions = TransactionCoordinator(folder / "transactions.jsonl", self.catalogue, self.offsets, config)
        self.groups = GroupCoordinator(config)
        self.quotas = ClientQuotas(folder / "quotas.json", config)
        self.flusher = Flusher()
        self.metrics = ServerMetrics()
        self.codecs = CodecMaker()

        if found_format < FORMAT:
            logger.info("%s: format %d is upgraded to %d", folder, found_format, FORMAT)
        if not is_marked(folder):
            self._upgrade(folder)
        self.reserve.hold()

    def _upgrade(self, folder: Path) -> None:
        """Write what older formats have otherwise, then say so. Without room for it the next start does."""
        try:
            self.offsets.rewrite()
            self.transactions.rewrite()
            mark_format(folder)
        except OSError as error:
            logger.error("%s: not upgraded to format %d (%s), the next start does", folder, FORMAT, error.strerror)

    def start(self) -> None:
        """To be called in the event loop before the first request."""
        self.transactions.start()

    def expire(self) -> None:
        """Forget what nobody has used for its retention time."""
        now_ms = time.time_ns() // 1_000_000
        for group in self.groups.groups():
            self.offsets.has_members(group.group_id, now_ms)
        for group in self.offsets.idle_since(now_ms - self.config.offsets_retention_ms):
            if self.groups.get(group) is None:
                logger.info("group %r: its offsets are older than the retention and are removed", group)
                self.offsets.delete(group)
        for log in self.catalogue.logs():
            log.producers.forget_before(log.start_offset, now_ms - self.config.producer_id_expiration_ms)
        self.transactions.expire()

    def flush_journals(self) -> None:
        """Force committed offsets and transactions to disk. Blocks shortly: both files are small. Raises OSError."""
        self.offsets.flush()
        self.transactions.flush()

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its data and the offsets committed for it. Raises TopicRefused."""
        self.catalogue.delete(name)
        try:
            self.offsets.delete_topic(name)
        except OSError as error:
            logger.error("topic %s: the offsets committed for it are still there (%s)", name, error.strerror)

    async def close(self) -> None:
        """Flush everything and let go of the files."""
        self.codecs.close()
        self.groups.close()
        await self.flusher.close()
        self.transactions.close()
        self.offsets.close()
        await asyncio.to_thread(self.catalogue.close)
