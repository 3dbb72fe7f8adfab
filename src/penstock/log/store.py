"""The data folder: its topics and their partitions. One process owns it at a time."""

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
    LogError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.log.configs.topic_config import TopicConfig
from penstock.log.partition import PartitionLog
from penstock.log.recovery import RecoveryReport
from penstock.log.segment import LOG_SUFFIX, Resources
from penstock.log.statefile import TEMPORARY_SUFFIX, DamagedStateError, read_state, write_state
from penstock.model import check_topic_name as check_topic_name

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "lock"
TOPICS_FOLDER: Final = "topics"
_DELETED_FOLDER: Final = re.compile(r"[0-9a-f]{32}-[0-9]+\.deleted")
"""The folder of a deleted topic's partition: topic id and number. Nothing else is ever removed from the data folder."""
_PARTITION_FOLDER: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-[0-9]+")
_DELETING_PREFIX: Final = "~"
"""The prefix, before the topic id, that replaces the name of a topic being deleted. No topic name has it."""
_FOLDERS_MADE: Final = 2
"""Since this version of a topic file, partition folders are created with the topic: a missing one was lost."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    version: int = _FOLDERS_MADE
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


class TopicStore:
    """Opens the folder, locks it, and recovers every partition. Call `close` to make the next start fast."""

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
        self._unserved: dict[str, str] = {}
        """Topics with leftover files that cannot be served, and why."""
        self._deleting: dict[str, TopicState] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(folder)
        self.resources.owner = self._lock
        try:
            self.is_new = not (folder / TOPICS_FOLDER).is_dir() and not any(map(_holds_records, folder.iterdir()))
            """Whether the folder had neither topics nor records when it was opened."""
            self._open_all()
        except BaseException:
            self._lock.release()
            raise

    # What there is.

    def names(self) -> list[str]:
        return list(self._topics)

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def is_known(self, name: str) -> bool:
        """Whether the topic exists, even if it cannot be served because a file is damaged or missing."""
        return name in self._topics or name in self._unserved

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        topic = self._by_id.get(topic_id)
        return topic.name if topic else None

    def id_of(self, name: str) -> uuid.UUID | None:
        topic = self._topics.get(name)
        return topic.id if topic else None

    def exists(self, topic: str, partition: int) -> bool:
        return self.partition(topic, partition) is not None

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
            raise TopicExistsError(f"topic {name!r} already exists")
        if name in self._unserved:
            raise TopicExistsError(f"topic {name!r} exists, but is not served: {self._unserved[name]}")
        if name in self._deleting:
            raise TopicExistsError(f"topic {name!r} is still being deleted; create it again in a moment")
        if partition_count < 1:
            raise ConfigError(f"topic {name!r} needs at least one partition, not {partition_count}")
        config = TopicConfig.parse(overrides, self.broker_defaults)
        if any(not _is_empty(self._partition_folder(name, number)) for number in range(partition_count)):
            raise TopicExistsError(
                f"there are records of a topic {name!r}, but its topic file is missing; restore "
                f"{self._state_path(name)} from a copy, or move {self.folder / name}-* away"
            )
        state = TopicState(name=name, id=_new_topic_id(), partition_count=partition_count, overrides=dict(overrides))
        self._make_folders(name, range(partition_count))
        self._save(state)
        return self._install(state, config)

    def delete(self, name: str) -> None:
        """Delete the topic and its records. Works on a full disk.

        The deletion stays recorded until `deletion_finished`, so that a crash in between does not leave committed
        offsets of groups behind.
        """
        topic = self._require(name)
        state = TopicState(name=name, id=topic.id, partition_count=len(topic.partitions), overrides=topic.overrides)
        try:
            self._state_path(name).rename(self._deleting_path(state))
            self.resources.disk.sync_folder(self.folder / TOPICS_FOLDER)
            del self._topics[name], self._by_id[topic.id]
            self._deleting[name] = state
            self.version += 1
            for log in topic.partitions:
                log.failed = f"{log.name}: the topic was deleted"
                for segment in log.segments:
                    self.resources.forget(segment)
            self._put_aside(state)
        except OSError as error:
            raise StorageError(f"topic {name!r} could not be deleted: {error.strerror}") from error
        for log in topic.partitions:
            log.publish(log.end_offset + 1)
        threading.Thread(target=self.remove_deleted, name="penstock-delete", daemon=True).start()

    def being_deleted(self) -> list[str]:
        """Deleted topics for which groups may still have offsets. Their names are not free yet."""
        return list(self._deleting)

    def deletion_finished(self, name: str) -> None:
        """Free the name of a deleted topic: no group has offsets for it any more."""
        state = self._deleting[name]
        try:
            self._put_aside(state)
            self._deleting_path(state).unlink()
            self.resources.disk.sync_folder(self.folder / TOPICS_FOLDER)
        except OSError as error:
            raise StorageError(f"topic {name!r} could not be deleted: {error.strerror}") from error
        del self._deleting[name]

    def _put_aside(self, state: TopicState) -> None:
        """Rename the partitions of a deleted topic, so that `remove_deleted` finds them and the name is free."""
        reused = self._state_path(state.name).exists()
        for number in range(0 if reused else state.partition_count):
            folder = self._partition_folder(state.name, number)
            if folder.is_dir():
                folder.rename(self.folder / f"{state.id.hex}-{number}.deleted")
        self.resources.disk.sync_folder(self.folder)

    def add_partitions(self, name: str, total: int) -> None:
        topic = self._require(name)
        if total <= len(topic.partitions):
            raise ConfigError(
                f"topic {name!r} has {len(topic.partitions)} partitions; partitions can be added, but not removed"
            )
        self._make_folders(name, range(len(topic.partitions), total))
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

    def set_broker_defaults(self, broker_defaults: Mapping[str, str]) -> None:
        """Change the defaults of topic configs. Raises ConfigError, and changes nothing, if one does not fit."""
        configs = {name: TopicConfig.parse(topic.overrides, broker_defaults) for name, topic in self._topics.items()}
        self.broker_defaults = dict(broker_defaults)
        for name, config in configs.items():
            topic = self._topics[name]
            if config != topic.config:
                topic.config = config
                for log in topic.partitions:
                    log.set_config(config)
        self.version += 1

    def close(self) -> None:
        """Sync and checkpoint every partition, then release the folder."""
        if not self._lock.is_ours():
            self.abandon()
        try:
            for log in self.partitions():
                try:
                    log.close()
                except LogError as error:
                    logger.error("%s could not be closed cleanly: %s", log.name, error, extra={"partition": log.name})
        finally:
            self.resources.files.close()
            self._lock.release()

    def is_ours(self) -> bool:
        return self._lock.is_ours()

    def abandon(self) -> None:
        """Write nothing more: the folder is gone, and a folder at its path is another one."""
        self.resources.read_only = True
        for log in self.partitions():
            log.failed = log.failed or f"{log.name}: {self._lock.what_happened()}"

    def remove_deleted(self) -> None:
        """Remove the folders of deleted topics. Large files take time, so `delete` leaves this to a thread."""
        for path in self.folder.iterdir():
            if _DELETED_FOLDER.fullmatch(path.name):
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

    def _partition_folder(self, name: str, number: int) -> Path:
        return self.folder / f"{name}-{number}"

    def _make_folders(self, name: str, numbers: range) -> None:
        """Create the folders of partitions, durably, before the topic file mentions them."""
        self._lock.check()
        try:
            for number in numbers:
                self._partition_folder(name, number).mkdir(exist_ok=True)
            self.resources.disk.sync_folder(self.folder)
        except OSError as error:
            raise StorageError(f"the folders of topic {name!r} could not be created: {error.strerror}") from error

    def _save(self, state: TopicState) -> None:
        self._lock.check()
        try:
            write_state(self._state_path(state.name), msgspec.json.encode(state), self.resources.disk)
        except OSError as error:
            raise StorageError(f"topic {state.name!r} could not be stored: {error.strerror}") from error

    def _open_all(self) -> None:
        topics = self.folder / TOPICS_FOLDER
        topics.mkdir(exist_ok=True)
        self.remove_deleted()
        for path in sorted(topics.iterdir()):
            if path.name.endswith(TEMPORARY_SUFFIX):
                path.unlink()
                continue
            try:
                self._open_topic(path)
            except (DamagedStateError, MissingFolderError, msgspec.MsgspecError) as error:
                self._leave_alone(path.name, f"{error}. Restore it from a copy; the other files are untouched")
        self._find_undescribed()

    def _open_topic(self, path: Path) -> None:
        state = msgspec.json.decode(read_state(path) or b"", type=TopicState)
        if path.name.startswith(_DELETING_PREFIX):
            self._put_aside(state)
            self._deleting[state.name] = state
            return
        folders = [self._partition_folder(state.name, number) for number in range(state.partition_count)]
        missing = [folder for folder in folders if not folder.is_dir()]
        if missing and state.version >= _FOLDERS_MADE:
            raise MissingFolderError(
                f"{', '.join(map(str, missing))} missing, with the records of {len(missing)} of "
                f"{state.partition_count} partitions (create an empty folder to continue without them)"
            )
        self._install(state, TopicConfig.parse(state.overrides, self.broker_defaults))
        if state.version < _FOLDERS_MADE:
            self._upgrade(state)

    def _upgrade(self, state: TopicState) -> None:
        """Create the folders that an earlier version created with the first record."""
        try:
            self._make_folders(state.name, range(state.partition_count))
            self._save(msgspec.structs.replace(state, version=_FOLDERS_MADE))
        except StorageError as error:
            logger.warning("%s; it is retried at the next start", error, extra={"topic": state.name})

    def _leave_alone(self, name: str, reason: str) -> None:
        self._unserved[name] = reason
        logger.error("topic %s is not served: %s", name, reason, extra={"topic": name})

    def _find_undescribed(self) -> None:
        """Find folders with records of topics whose topic file was lost."""
        left: dict[str, list[str]] = {}
        for path in sorted(self.folder.iterdir()):
            found = _PARTITION_FOLDER.fullmatch(path.name)
            if found and not self.is_known(found["topic"]) and _holds_records(path):
                left.setdefault(found["topic"], []).append(str(path))
        for name, folders in left.items():
            self._leave_alone(
                name,
                f"its topic file {self._state_path(name)} is missing, but there are records in {', '.join(folders)}. "
                "Restore the file from a copy, or move the folders away; records and group offsets are untouched",
            )

    def _install(self, state: TopicState, config: TopicConfig) -> Topic:
        partitions = [self._open_partition(state.name, number, config) for number in range(state.partition_count)]
        topic = Topic(state.name, state.id, partitions, config, dict(state.overrides), state.name in self._internal)
        self._topics[state.name] = topic
        self._by_id[state.id] = topic
        self.version += 1
        return topic

    def _open_partition(self, topic: str, number: int, config: TopicConfig) -> PartitionLog:
        folder = self._partition_folder(topic, number)
        log, report = PartitionLog.open(topic, number, folder, config, self.resources)
        self.recovered.add(report)
        return log


def _new_topic_id() -> uuid.UUID:
    """A random id, except 0 and 1, which the protocol reserves."""
    while True:
        candidate = uuid.uuid4()
        if candidate.int > 1:
            return candidate


def _is_empty(folder: Path) -> bool:
    return not folder.is_dir() or not any(folder.iterdir())


def _holds_records(folder: Path) -> bool:
    """Whether it looks like a partition folder. A spool, which may also be here, has its own lock file."""
    return folder.is_dir() and not (folder / LOCK_FILE).exists() and any(folder.glob("[0-9]" * 20 + LOG_SUFFIX))


class MissingFolderError(LogError):
    """A partition folder is missing."""


class FolderLock:
    """One process owns a data folder until `release`, or until it ends.

    The owner holds the lock file open. If the folder is removed, another one may appear at its path with its own lock
    file, and files written by path would go there. So call `check` before creating or replacing a file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / LOCK_FILE
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, 64, 0).decode(errors="replace").strip() or "unknown"
            self.release()
            raise DataFolderInUseError(
                f"{folder} is in use by process {owner}. One broker owns a data folder: stop that one, connect to it "
                "instead, or choose another folder."
            ) from None
        os.ftruncate(self._fd, 0)
        self._content = f"{os.getpid()}\n".encode()
        os.pwrite(self._fd, self._content, 0)
        self._has_inode = True
        """False on a file system without stable inode numbers: there the content is compared."""
        if not self.is_ours():
            self._has_inode = False
        if not self.is_ours():
            self.release()
            raise StorageError(self.what_happened())

    def is_ours(self) -> bool:
        try:
            if self._has_inode:
                return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
            return self._path.read_bytes() == self._content
        except (FileNotFoundError, NotADirectoryError):
            return False

    def check(self) -> None:
        """Raise StorageError unless the folder is still ours."""
        if not self.is_ours():
            raise StorageError(self.what_happened())

    def what_happened(self) -> str:
        return f"the data folder {self._folder} was removed or replaced while it was in use"

    def release(self) -> None:
        os.close(self._fd)
