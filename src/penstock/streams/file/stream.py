"""`file:` URLs: which files are topics, and a topic over each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.abc import Feature, Features
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import Batch, NewRecord, Pointer, Receipt, check_topic_name, is_topic_name
from penstock.streams.adapting.batch_writer import BatchWriter, Outcome
from penstock.streams.adapting.polled_topic import PolledTopic, Wakeups
from penstock.streams.backend_url import parse_backend_url, settings_of
from penstock.streams.file.lines import GENERATION_BITS, OFFSET_MASK, CsvFile, LineFile
from penstock.streams.file.settings import FileSettings

JSON_ENDINGS: Final = (".jsonl", ".ndjson")
SCAN_RECORDS: Final = 1_000


class Source(Protocol):
    """The records of one topic."""

    path: Path

    def check(self) -> None:
        """Raise UnknownTopicError unless the topic exists."""

    def span(self) -> tuple[Pointer, Pointer]: ...

    def read(self, start: Pointer, limit: int) -> Batch: ...


def open_file(url: str, options: Mapping[str, Any]) -> FileStream:
    """The stream of a `file:` URL."""
    parts = parse_backend_url(url)
    settings = settings_of(parts, FileSettings, options)
    if url.partition(":")[2].startswith("//") or not parts.path:
        raise UrlError(f"{url!r}: write the path right after the colon, as in file:./data or file:/var/orders.jsonl")
    return FileStream(url, Path(parts.path).expanduser().absolute(), settings)


class FileTopic(PolledTopic):
    """One file, or one folder of Parquet files, as `abc.TopicStream` with one partition."""

    def __init__(self, topic: str, source: Source | None, wakeups: Wakeups, settings: FileSettings, where: str) -> None:
        super().__init__(topic, wakeups, settings.poll_interval_s)
        self.features = features_of(settings)
        self._found = source
        self._where = where
        self._settings = settings
        self._writer = BatchWriter(topic, self._write, max_record_bytes=settings.max_record_bytes)

    def partitions(self) -> Sequence[int]:
        self._source().check()
        return (0,)

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        source = self._source()
        self._check_partition(partition)
        return source.span()

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        """Append records. A thread writes them, together with those of other appends."""
        self._writer.check_open()
        if self._found is not None and type(self._found) is not LineFile:
            raise ConfigError(f"{self._found.path} is only read: only JSON lines can be appended to")
        return self._writer.append(records)

    def close(self) -> None:
        self._writer.close()
        super().close()

    def _batch(self, partition: int, start: Pointer, limit: int) -> Batch:
        source = self._source()
        self._check_partition(partition)
        return source.read(start, limit)

    def _write(self, records: Sequence[NewRecord]) -> Sequence[Outcome]:
        source = self._source()
        assert isinstance(source, LineFile), "checked by append"
        wrong = [each for each in records if each.partition not in (None, 0)]
        if wrong:
            raise UnknownTopicError(f"topic {self.topic!r} has no partition {wrong[0].partition}: files have one")
        outcomes = source.write(records)
        self._wakeups.tell(self.topic)
        return outcomes

    def _at_time(self, partition: int, time_ms: int) -> Pointer:
        """The pointer of the first record at or after a time. Files have no index, so this reads from the beginning."""
        start, end = self.span(partition)
        if Feature.TIMES not in self.features:
            raise ConfigError(f"topic {self.topic!r} cannot be read from a time: name its timestamp_field in the URL")
        while start < end:  # ends: each batch goes on
            batch = self._source().read(start, SCAN_RECORDS)
            for record in batch:
                if record.timestamp_ms is not None and record.timestamp_ms >= time_ms:
                    return record.offset
            if batch.next == start:
                break
            start = batch.next
        return end

    def _source(self) -> Source:
        self._check_open()
        if self._found is None:
            raise UnknownTopicError(f"{self._where} has no topic {self.topic!r}: create it first")
        return self._found

    def _check_partition(self, partition: int) -> None:
        if partition != 0:
            raise UnknownTopicError(f"topic {self.topic!r} has no partition {partition}: files have one, number 0")


class FileStream:
    """Files as `abc.Stream`. Pointers of line files are shown as GENERATION/BYTE."""

    def __init__(self, url: str, path: Path, settings: FileSettings) -> None:
        self.url = url
        self.features = features_of(settings)
        self._path = path
        self._settings = settings
        self._wakeups = Wakeups()
        self._is_closed = False

    def open_topic(self, topic: str) -> FileTopic:
        self._check_open()
        check_topic_name(topic)
        path = self._paths().get(topic)
        if path is None and self._new_path(topic) is not None:
            path = self._new_path(topic)
        return FileTopic(
            topic, None if path is None else self._source(topic, path), self._wakeups, self._settings, str(self._path)
        )

    def topics(self) -> list[str]:
        self._check_open()
        return sorted(self._paths())

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        self._check_open()
        check_topic_name(topic)
        if partitions not in (None, 1):
            raise ConfigError(f"partitions={partitions} for topic {topic!r} must be 1: files have no partitions")
        path = self._new_path(topic)
        if topic in self._paths():
            raise TopicExistsError(f"topic {topic!r} exists already: {self._paths()[topic]}")
        if path is None:
            raise ConfigError(f"{self.url} is the only topic there: give the URL of a folder to create others")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
            _sync_folder(path.parent)
        except FileExistsError:
            raise TopicExistsError(f"topic {topic!r} exists already: {path}") from None
        except OSError as error:
            raise StorageError(f"{path} cannot be created: {error}") from error

    def pointer_text(self, pointer: Pointer) -> str:
        return f"{pointer >> GENERATION_BITS}/{pointer & OFFSET_MASK}"

    def parse_pointer(self, text: str) -> Pointer:
        generation, _, offset = text.rpartition("/")
        if not offset.isdecimal() or not (generation or "0").isdecimal() or int(offset) > OFFSET_MASK:
            raise ConfigError(
                f"{text!r} is not a pointer of a file: write GENERATION/BYTE, such as 0/1234, or a row number"
            )
        return (int(generation or 0) << GENERATION_BITS) + int(offset)

    def checkpoint_url(self, *, in_stream: bool) -> str:
        return f"sqlite:{self._path.with_name(f'.{self._path.name}.checkpoints')}"

    def close(self) -> None:
        self._is_closed = True
        self._wakeups.tell_all()

    def _paths(self) -> dict[str, Path]:
        """The topics that there are, with their files or folders."""
        if self._path.is_dir():
            if any(self._path.glob("*.parquet")):
                return {self._path.name: self._path}
            found = [path for path in sorted(self._path.iterdir()) if _is_topic(path)]
            paths: dict[str, Path] = {}
            for path in found:
                name = path.stem if path.is_file() else path.name
                if name in paths:
                    raise ConfigError(f"{paths[name]} and {path} would be one topic, {name!r}: rename one of them")
                paths[name] = path
            return paths
        return {self._path.stem: self._path} if self._path.exists() else {}

    def _new_path(self, topic: str) -> Path | None:
        """The file of a topic that does not exist yet."""
        if self._path.suffix in JSON_ENDINGS and not self._path.is_dir():
            return self._path if topic == self._path.stem else None
        if self._path.is_file() or (self._path.is_dir() and any(self._path.glob("*.parquet"))):
            return None
        return self._path / f"{topic}.jsonl"

    def _source(self, topic: str, path: Path) -> Source:
        if path.is_dir():
            from penstock.streams.file.parquet import ParquetFolder

            return ParquetFolder(topic, path, self._settings)
        if path.suffix in JSON_ENDINGS or self._settings.format == "jsonl":
            return LineFile(topic, path, self._settings)
        if path.suffix == ".csv" or self._settings.format == "csv":
            return CsvFile(topic, path, self._settings)
        raise ConfigError(f"{path} is neither .jsonl, .ndjson nor .csv: add ?format=jsonl or ?format=csv")

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionClosedError(f"the connection to {self.url} is closed: connect again")


def features_of(settings: FileSettings) -> Features:
    found = {Feature.DURABLE}
    if settings.envelope or settings.key_field:
        found.add(Feature.KEYS)
    if settings.envelope:
        found.add(Feature.HEADERS)
    if settings.envelope or settings.timestamp_field:
        found.add(Feature.TIMES)
    return frozenset(found)


def _sync_folder(folder: Path) -> None:
    """A new file survives a power failure with the folder that names it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_topic(path: Path) -> bool:
    if path.name.startswith((".", "_")) or not is_topic_name(path.stem if path.is_file() else path.name):
        return False
    if path.is_dir():
        return any(path.glob("*.parquet"))
    return path.suffix in (*JSON_ENDINGS, ".csv")
