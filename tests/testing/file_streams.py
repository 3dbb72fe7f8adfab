"""A durable stream of a few lines, to show what the suite says about streams that are killed. Small, slow, correct.

Each topic has one partition, a file of pickled records. Whoever appends holds a lock, and everybody reads what the file
has more than before. Subclasses have one defect each.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

from penstock.abc import Feature, Features
from penstock.model import Batch, NewRecord, Pointer, Receipt
from penstock.streams.memory import MemoryStream
from penstock.streams.memory.streams import MemoryTopicStream
from penstock.streams.memory.topics import Topics

FEATURES: Final = frozenset({Feature.KEYS, Feature.HEADERS, Feature.TIMES, Feature.IDEMPOTENCE, Feature.DURABLE})


class Copies:
    """How much of each file is in the memory."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known_bytes: dict[str, int] = {}


class FileStream(MemoryTopicStream):
    """Its memory is a copy of the file, brought up to date before anything is done."""

    def __init__(self, topic: str, topics: Topics, file: Path, copies: Copies) -> None:
        super().__init__(topic, topics)
        self.file = file
        self.copies = copies
        self.unwritten: list[NewRecord] = []

    @property
    def features(self) -> Features:
        return FEATURES

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        self.catch_up()
        return super().span(partition)

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        self.catch_up()
        return super().read(partition, start, limit, wait_s)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        self._check_open()
        with self.locked():
            self.catch_up()
            os.truncate(self.file, self.copies.known_bytes.get(self.topic, 0))
            self.write(records)
            return self.catch_up()[: len(records)]

    def write(self, records: Sequence[NewRecord]) -> None:
        with self.file.open("ab") as file:
            file.write(b"".join(map(pickle.dumps, records)))

    def catch_up(self) -> Sequence[Receipt]:
        """Take what the file has more than the memory; gives the receipts of what was taken."""
        with self.copies.lock:
            return super().append(list(self.more()))

    def more(self) -> Iterator[NewRecord]:
        """What was written behind what is known, up to a record that was torn when its writer was killed."""
        with self.file.open("rb") as file:
            file.seek(self.copies.known_bytes.get(self.topic, 0))
            while True:
                try:
                    yield pickle.load(file)
                except (EOFError, pickle.UnpicklingError):
                    return
                self.copies.known_bytes[self.topic] = file.tell()

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self.file.with_suffix(".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class FileStreams(MemoryStream):
    kind: ClassVar[type[FileStream]] = FileStream

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.copies = Copies()
        for file in folder.glob("*.topic"):
            self._topics.find_or_create(file.stem)

    @property
    def features(self) -> Features:
        return FEATURES

    def create_topic(self, topic: str, partitions: int | None = None, config: Mapping[str, str] | None = None) -> None:
        super().create_topic(topic, partitions)
        (self.folder / f"{topic}.topic").touch()

    def open_topic(self, topic: str) -> FileStream:
        return self.kind(topic, self._topics, self.folder / f"{topic}.topic", self.copies)


class AcknowledgesFirst(FileStream):
    """Acknowledges what it will write when it is closed."""

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        self.unwritten += records
        return MemoryTopicStream.append(self, records)

    def close(self) -> None:
        self.write(self.unwritten)
        self.unwritten.clear()
        super().close()


class WritesTwice(FileStream):
    """Tries again after a write that it wrongly takes for a failure."""

    def write(self, records: Sequence[NewRecord]) -> None:
        super().write(records)
        super().write(records[-1:])


class WritesBackwards(FileStream):
    def write(self, records: Sequence[NewRecord]) -> None:
        super().write(list(reversed(records)))


class NeverWrites(FileStream):
    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return MemoryTopicStream.append(self, records)


class AcknowledgingFirst(FileStreams):
    kind = AcknowledgesFirst


class WritingTwice(FileStreams):
    kind = WritesTwice


class WritingBackwards(FileStreams):
    kind = WritesBackwards


class NeverWriting(FileStreams):
    kind = NeverWrites
