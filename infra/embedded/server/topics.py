"""The topic catalogue: which topics exist, their partitions and settings, kept in one file of the data folder."""

from __future__ import annotations

import json
import logging
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crc32c import crc32c

from agl_stream.infra.embedded import disk
from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.journal import DamagedFile
from agl_stream.infra.embedded.log.partition_log import PartitionLog
from agl_stream.infra.embedded.log.topic_config import InvalidTopicConfig, TopicConfig, check_topic_config
from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.storage import Reserve

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FORMAT = 2
_PRODUCER_ID_BLOCK = 1_000


class TopicRefused(Exception):
    """A request about a topic that is answered with an error code."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


@dataclass(slots=True)
class Topic:
    """A topic: `overrides` are the settings given for it, `config` what follows from them."""

    name: str
    overrides: dict[str, str]
    config: TopicConfig
    partitions: list[PartitionLog] = field(default_factory=list)


def _checksum(saved: dict[str, Any]) -> str:
    return f"{crc32c(json.dumps(saved, sort_keys=True).encode()):08x}"


def _cannot_write(error: OSError) -> TopicRefused:
    return TopicRefused(ErrorCode.KAFKA_STORAGE_ERROR, f"the broker cannot write: {error.strerror}")


def check_name(name: str) -> None:
    """Raise TopicRefused unless Kafka would take the name."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise TopicRefused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name[:80]!r}: 1 to 249 characters from a-z A-Z 0-9 . _ - are allowed, not . or ..",
        )


class Catalogue:
    """All topics. Every change is on disk before it is answered."""

    def __init__(self, folder: Path, config: BrokerConfig, reserve: Reserve) -> None:
        """Open every partition of the folder; raises DamagedFile when the catalogue cannot be read."""
        self._config = config
        self._reserve = reserve
        self._logs = folder / "logs"
        self._path = folder / "catalogue.json"
        self._topics: dict[str, Topic] = {}
        disk.make_folder(self._logs)
        saved = self._read()
        self._remove_leftovers(saved.get("topics", {}))
        self.cluster_id: str = saved.get("cluster_id") or uuid.uuid4().hex[:22]
        self._next_producer_id: int = saved.get("producer_ids_below", 0)
        self._producer_ids_below = self._next_producer_id
        for name, entry in saved.get("topics", {}).items():
            self._open(name, entry["partitions"], entry["configs"])
        if saved.get("format") != _FORMAT:
            self._save()

    def _read(self) -> dict[str, Any]:
        try:
            saved = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            if any(self._logs.iterdir()):
                raise DamagedFile(
                    f"{self._path} is missing but {self._logs} holds data. "
                    "Restore the file from a copy, or give an empty folder with --dir."
                ) from None
            return {}
        except ValueError as error:
            raise DamagedFile(f"{self._path} is not readable ({error}). Restore it from a copy.") from error
        if saved.get("format") not in range(1, _FORMAT + 1):
            raise DamagedFile(
                f"{self._path} has format {saved.get('format')}, this version reads up to {_FORMAT}. "
                "Use the version that wrote it."
            )
        if saved["format"] > 1 and saved.pop("checksum", None) != _checksum(saved):
            raise DamagedFile(f"{self._path} is damaged: its checksum is wrong. Restore it from a copy.")
        return saved

    def _remove_leftovers(self, topics: dict[str, Any]) -> None:
        """Folders that the catalogue does not name: a deletion or a creation that a kill cut short."""
        named = {f"{name}-{number}" for name, entry in topics.items() for number in range(entry["partitions"])}
        for folder in self._logs.iterdir():
            if folder.name not in named:
                logger.warning("removing %s: its topic was deleted, or never completely created", folder)
                shutil.rmtree(folder)

    def _save(self, *, freeing: bool = False) -> None:
        """Write the file. `freeing`: room will be free after it, so what is held in reserve may be used."""
        topics = {
            topic.name: {"partitions": len(topic.partitions), "configs": topic.overrides}
            for topic in self._topics.values()
        }
        saved = {
            "format": _FORMAT,
            "cluster_id": self.cluster_id,
            "producer_ids_below": self._producer_ids_below,
            "topics": topics,
        }
        data = json.dumps(saved | {"checksum": _checksum(saved)}, indent=1).encode()
        try:
            disk.write_whole(self._path, data)
        except OSError:
            if not freeing or not self._reserve.release():
                raise
            disk.write_whole(self._path, data)

    def _open(self, name: str, partitions: int, overrides: dict[str, str]) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            config = TopicConfig.parse(overrides, self._config.topic_defaults)
            topic = self._topics[name] = Topic(name, overrides, config)
        for number in range(len(topic.partitions), partitions):
            topic.partitions.append(PartitionLog(name, number, self._logs / f"{name}-{number}", topic.config))
        return topic

    # Look-up

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def names(self) -> list[str]:
        return sorted(self._topics)

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def require(self, name: str) -> Topic:
        """The topic; raises TopicRefused when there is none."""
        topic = self._topics.get(name)
        if topic is None:
            check_name(name)
            raise TopicRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return topic

    def partition(self, name: str, number: int) -> PartitionLog | None:
        topic = self._topics.get(name)
        if topic is None or not 0 <= number < len(topic.partitions):
            return None
        return topic.partitions[number]

    def logs(self) -> Iterator[PartitionLog]:
        """Every partition."""
        for topic in list(self._topics.values()):
            yield from list(topic.partitions)

    # Changes; each raises TopicRefused and then has changed nothing

    def create(
        self, name: str, partitions: int, overrides: Mapping[str, str | None], *, validate_only: bool = False
    ) -> int:
        """Create a topic, -1 partitions mean the default; returns the number of partitions."""
        check_name(name)
        if name in self._topics:
            raise TopicRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists")
        if partitions == -1:
            partitions = self._config.default_partitions
        if partitions < 1:
            raise TopicRefused(
                ErrorCode.INVALID_PARTITIONS, f"topic {name}: {partitions} partitions, at least 1 is needed"
            )
        self._check_room(partitions)
        checked = self._checked(overrides)
        if not validate_only:
            self._change(name, partitions, checked)
        return partitions

    def add_partitions(self, name: str, total: int, *, validate_only: bool = False) -> None:
        """Raise the number of a topic's partitions to `total`."""
        topic = self.require(name)
        present = len(topic.partitions)
        if total <= present:
            raise TopicRefused(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name} has {present} partitions; they cannot be changed to {total}",
            )
        self._check_room(total - present)
        if not validate_only:
            self._change(name, total, topic.overrides)

    def _change(self, name: str, partitions: int, overrides: dict[str, str]) -> None:
        existed = len(self._topics[name].partitions) if name in self._topics else 0
        try:
            self._open(name, partitions, overrides)
            disk.sync_folder(self._logs)
            self._save()
        except OSError as error:
            self._undo_open(name, existed)
            raise _cannot_write(error) from error

    def _undo_open(self, name: str, existed: int) -> None:
        topic = self._topics[name]
        for log in topic.partitions[existed:]:
            log.deleted = True
            log.close()
            shutil.rmtree(log.folder, ignore_errors=True)
        del topic.partitions[existed:]
        if not existed:
            del self._topics[name]

    def _check_room(self, wanted: int) -> None:
        present = sum(len(topic.partitions) for topic in self._topics.values())
        if present + wanted > self._config.max_partitions:
            raise TopicRefused(
                ErrorCode.POLICY_VIOLATION,
                f"{present} partitions exist and {wanted} more were asked for; "
                f"the broker's max_partitions is {self._config.max_partitions}",
            )

    def _checked(self, overrides: Mapping[str, str | None]) -> dict[str, str]:
        try:
            check_topic_config(overrides)
        except InvalidTopicConfig as error:
            raise TopicRefused(ErrorCode.INVALID_CONFIG, str(error)) from error
        return {key: value for key, value in overrides.items() if value is not None}

    def configure(self, name: str, overrides: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        """Replace a topic's settings."""
        topic = self.require(name)
        checked = self._checked(overrides)
        if validate_only:
            return
        before, topic.overrides = topic.overrides, checked
        try:
            self._save()
        except OSError as error:
            topic.overrides = before
            raise _cannot_write(error) from error
        topic.config.update(checked, self._config.topic_defaults)

    def delete(self, name: str) -> None:
        """Delete a topic and its data, also on a full disk."""
        topic = self.require(name)
        del self._topics[name]
        try:
            self._save(freeing=True)
        except OSError as error:
            self._topics[name] = topic
            raise _cannot_write(error) from error
        for log in topic.partitions:
            log.deleted = True
            log.close()
            for wake in tuple(log.waiters):
                wake()
            shutil.rmtree(log.folder, ignore_errors=True)

    def new_producer_id(self) -> int:
        """A producer id that was never given before; ids are reserved on disk in blocks. Raises OSError."""
        if self._next_producer_id >= self._producer_ids_below:
            below = self._producer_ids_below
            self._producer_ids_below = self._next_producer_id + _PRODUCER_ID_BLOCK
            try:
                self._save()
            except OSError:
                self._producer_ids_below = below
                raise
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def close(self) -> None:
        for log in self.logs():
            log.close()
