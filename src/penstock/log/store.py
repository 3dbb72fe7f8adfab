"""The data folder: which topics there are, and their partitions. One process owns it at a time."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import (
    ConfigError,
    DataFolderInUseError,
    InvalidTopicError,
    LogError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.log.config import TopicConfig
from penstock.log.partition import PartitionLog
from penstock.log.recovery import RecoveryReport
from penstock.log.segment import Resources
from penstock.log.statefile import TEMPORARY_SUFFIX, DamagedStateError, read_state, write_state

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "lock"
TOPICS_FOLDER: Final = "topics"
MAX_TOPIC_NAME: Final = 249
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_DELETED_SUFFIX: Final = ".deleted"
_DELETING_PREFIX: Final = "~"
"""Before the id of a topic whose records are being removed, in place of its name. No topic name has it."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """What is written down about a topic."""

    version: int = 1
    name: str
    id: uuid.UUID
    partition_count: int
    overrides: dict[str, str]


@dataclass(slots=True)
class Topic:
    name: str
    id: uuid.UUID
    partitions: list[PartitionLog]
    config: TopicConfig
    overrides: dict[str, str]
    internal: bool


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError unless Kafka, too, would allow the name."""
    if not name or name in (".", "..") or len(name) > MAX_TOPIC_NAME or not _LEGAL_NAME.fullmatch(name):
        raise InvalidTopicError(
            f"{name!r} is no topic name: use 1 to {MAX_TOPIC_NAME} letters, digits, dots, underscores and dashes, "
            "and not '.' or '..'"
        )


class TopicStore:
    """Opens the folder, takes its lock, and recovers every partition. `close` it to make the next start quick."""

    def __init__(
        self,
        folder: Path,
        *,
        resources: Resources | None = None,
        broker_defaults: Mapping[str, str] | None = None,
        internal_topics: frozenset[str] = frozenset(),
    ) -> None:
        self.folder = folder
        self.resources = resources or Resources()
        self.broker_defaults = dict(broker_defaults or {})
        self.version = 0
        """Changes whenever a topic is created, deleted or altered."""
        self.recovered = RecoveryReport()
        self._internal = internal_topics
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._damaged: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock_fd = lock_folder(folder)
        try:
            self._open_all()
        except BaseException:
            os.close(self._lock_fd)
            raise

    # What there is.

    def names(self) -> list[str]:
        return list(self._topics)

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def is_known(self, name: str) -> bool:
        """Whether there is such a topic, be it one whose description is damaged and that cannot be served."""
        return name in self._topics or name in self._damaged

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        topic = self._by_id.get(topic_id)
        return topic.name if topic else None

    def id_of(self, name: str) -> uuid.UUID | None:
        topic = self._topics.get(name)
        return topic.id if topic else None

    def exists(self, topic: str, partition: int) -> bool:
        found = self._topics.get(topic)
        return found is not None and 0 <= partition < len(found.partitions)

    def partition(self, topic: str, partition: int) -> PartitionLog | None:
        found = self._topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def partitions(self) -> Iterator[PartitionLog]:
        for topic in self._topics.values():
            yield from topic.partitions

    # Changing it.

    def create(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        check_topic_name(name)
        if name in self._topics:
            raise TopicExistsError(f"topic {name!r} exists already")
        if name in self._damaged:
            raise TopicExistsError(f"topic {name!r} exists, but its description is damaged; see the broker's log")
        if partition_count < 1:
            raise ConfigError(f"topic {name!r} needs at least one partition, not {partition_count}")
        config = TopicConfig.parse(overrides, self.broker_defaults)
        if any((self.folder / f"{name}-{number}").exists() for number in range(partition_count)):
            raise TopicExistsError(
                f"there are records of a topic {name!r}, but its description is missing; restore "
                f"{self._state_path(name)} from a copy, or move {self.folder / name}-* away"
            )
        state = TopicState(name=name, id=_new_topic_id(), partition_count=partition_count, overrides=dict(overrides))
        self._save(state)
        return self._install(state, config)

    def delete(self, name: str) -> None:
        """Forget the topic and remove its records. The name can be used again at once. Works on a full disk."""
        topic = self._require(name)
        state = TopicState(name=name, id=topic.id, partition_count=len(topic.partitions), overrides=topic.overrides)
        try:
            self._state_path(name).rename(self._deleting_path(state))
            self.resources.disk.sync_folder(self.folder / TOPICS_FOLDER)
            del self._topics[name], self._by_id[topic.id]
            self.version += 1
            for log in topic.partitions:
                log.failed = f"{log.name}: the topic was deleted"
                for segment in log.segments:
                    self.resources.forget(segment)
            self._finish_deleting(state)
        except OSError as error:
            raise StorageError(f"topic {name!r} could not be deleted: {error.strerror}") from error
        for log in topic.partitions:
            log.publish(log.end_offset + 1)
        threading.Thread(target=self.remove_deleted, name="penstock-delete", daemon=True).start()

    def _finish_deleting(self, state: TopicState) -> None:
        """Move the partitions out of the way, and only then forget that there is something to delete."""
        reused = self._state_path(state.name).exists()
        for number in range(0 if reused else state.partition_count):
            folder = self.folder / f"{state.name}-{number}"
            if folder.is_dir():
                folder.rename(self.folder / f"{state.id.hex}-{number}{_DELETED_SUFFIX}")
        self.resources.disk.sync_folder(self.folder)
        self._deleting_path(state).unlink()
        self.resources.disk.sync_folder(self.folder / TOPICS_FOLDER)

    def add_partitions(self, name: str, total: int) -> None:
        topic = self._require(name)
        if total <= len(topic.partitions):
            raise ConfigError(
                f"topic {name!r} has {len(topic.partitions)} partitions; they can be added to, never taken away"
            )
        self._save(TopicState(name=name, id=topic.id, partition_count=total, overrides=topic.overrides))
        for number in range(len(topic.partitions), total):
            topic.partitions.append(self._open_partition(name, number, topic.config))
        self.version += 1

    def set_overrides(self, name: str, overrides: Mapping[str, str]) -> None:
        topic = self._require(name)
        config = TopicConfig.parse(overrides, self.broker_defaults)
        self._save(TopicState(name=name, id=topic.id, partition_count=len(topic.partitions), overrides=dict(overrides)))
        topic.overrides = dict(overrides)
        topic.config = config
        for log in topic.partitions:
            log.set_config(config)
        self.version += 1

    def close(self) -> None:
        """Sync and write down every partition, then let the folder go."""
        try:
            for log in self.partitions():
                try:
                    log.close()
                except LogError as error:
                    logger.error("%s could not be closed cleanly: %s", log.name, error, extra={"partition": log.name})
        finally:
            self.resources.files.close()
            os.close(self._lock_fd)

    def remove_deleted(self) -> None:
        """Remove the folders of deleted topics. Large files take their time, so `delete` leaves it to a thread."""
        for path in self.folder.glob("*" + _DELETED_SUFFIX):
            shutil.rmtree(path, ignore_errors=True)

    # Inside.

    def _require(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopicError(f"there is no topic {name!r}")
        return topic

    def _state_path(self, name: str) -> Path:
        return self.folder / TOPICS_FOLDER / name

    def _deleting_path(self, state: TopicState) -> Path:
        return self.folder / TOPICS_FOLDER / (_DELETING_PREFIX + state.id.hex)

    def _save(self, state: TopicState) -> None:
        try:
            write_state(self._state_path(state.name), msgspec.json.encode(state), self.resources.disk)
        except OSError as error:
            raise StorageError(f"topic {state.name!r} could not be written down: {error.strerror}") from error

    def _open_all(self) -> None:
        topics = self.folder / TOPICS_FOLDER
        topics.mkdir(exist_ok=True)
        self.remove_deleted()
        for path in sorted(topics.iterdir()):
            if path.name.endswith(TEMPORARY_SUFFIX):
                path.unlink()
                continue
            try:
                content = read_state(path)
                state = msgspec.json.decode(content or b"", type=TopicState)
                if path.name.startswith(_DELETING_PREFIX):
                    self._finish_deleting(state)
                    continue
                self._install(state, TopicConfig.parse(state.overrides, self.broker_defaults))
            except (DamagedStateError, msgspec.MsgspecError) as error:
                self._damaged.add(path.name)
                logger.error(
                    "topic %s is not served: %s. Its records are untouched; restore the file from a copy.",
                    path.name,
                    error,
                    extra={"topic": path.name},
                )

    def _install(self, state: TopicState, config: TopicConfig) -> Topic:
        partitions = [self._open_partition(state.name, number, config) for number in range(state.partition_count)]
        topic = Topic(state.name, state.id, partitions, config, dict(state.overrides), state.name in self._internal)
        self._topics[state.name] = topic
        self._by_id[state.id] = topic
        self.version += 1
        return topic

    def _open_partition(self, topic: str, number: int, config: TopicConfig) -> PartitionLog:
        folder = self.folder / f"{topic}-{number}"
        log, report = PartitionLog.open(topic, number, folder, config, self.resources)
        self.recovered.add(report)
        return log


def _new_topic_id() -> uuid.UUID:
    """Random, and neither zero nor one, which the protocol keeps for itself."""
    while True:
        candidate = uuid.uuid4()
        if candidate.int > 1:
            return candidate


def lock_folder(folder: Path) -> int:
    """Take the folder for this process until the returned descriptor is closed or the process ends."""
    fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise DataFolderInUseError(
            f"{folder} is in use by process {owner}. One broker owns a data folder: stop that one, connect to it "
            "instead, or choose another folder."
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
