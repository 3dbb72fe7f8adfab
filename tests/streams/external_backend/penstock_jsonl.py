"""Streams in files of JSON lines, `jsonl:FOLDER`, one file a topic and one partition each; and `cellar:FILE`, for
checkpoints and dead letters. It knows nothing of Penstock but what is public."""

from __future__ import annotations

import base64
import fcntl
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.abc import CheckpointStore, DeadLetters, Feature, Features, Stream
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.errors import ConfigError, TopicExistsError, UnknownTopicError
from penstock.model import Batch, NewRecord, Pointer, Position, PositionKind, Receipt, Record

FEATURES: Features = frozenset({Feature.OFFSETS, Feature.KEYS, Feature.HEADERS, Feature.DURABLE})


class JsonLinesTopic:
    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def topic(self) -> str:
        return self._file.stem

    @property
    def features(self) -> Features:
        return FEATURES

    def partitions(self) -> Sequence[int]:
        self._lines()
        return [0]

    def locate(self, partition: int, position: Position) -> Pointer:
        if position.kind is PositionKind.TIME:
            raise ConfigError(f"topic {self.topic!r} cannot be read from a time: it has no {Feature.TIMES}")
        if position.kind is PositionKind.POINTER:
            return int(position.pointer)
        return 0 if position.kind is PositionKind.EARLIEST else len(self._lines())

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        return 0, len(self._lines())

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        try:
            lines = self.poll_lines(start, limit, wait_s)
        except TimeoutError:
            lines = []
        records = [record_of(self.topic, start + number, json.loads(line)) for number, line in enumerate(lines)]
        return Batch(self.topic, 0, start, start + len(records), records)

    def poll_lines(self, start: Pointer, limit: int, timeout_s: float) -> list[str]:
        """Lines from `start` on, as soon as there is one. TimeoutError when none has come."""
        until_s = time.monotonic() + timeout_s
        while True:
            lines = self._lines()[start : start + limit]
            if lines:
                return lines
            if time.monotonic() >= until_s:
                raise TimeoutError(f"nothing was appended to topic {self.topic!r} within {timeout_s:g} s")
            time.sleep(0.01)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        receipts = []
        with self._file.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            offset = len(file.readlines())
            for record in records:
                file.write(json.dumps(fields_of(record)) + "\n")
                receipt = Receipt(self.topic)
                receipts.append(receipt)
            file.flush()
        for number, receipt in enumerate(receipts):
            receipt.settle(0, offset + number)
        return receipts

    def close(self) -> None:
        """Nothing is held open."""

    def _lines(self) -> list[str]:
        try:
            return self._file.read_text().splitlines()
        except FileNotFoundError:
            raise UnknownTopicError(f"there is no topic {self.topic!r}") from None


class JsonLines:
    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder

    @property
    def features(self) -> Features:
        return FEATURES

    def open_topic(self, topic: str) -> JsonLinesTopic:
        return JsonLinesTopic(self._folder / f"{topic}.jsonl")

    def topics(self) -> list[str]:
        return sorted(file.stem for file in self._folder.glob("*.jsonl"))

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        if partitions not in (None, 1):
            raise ConfigError(f"topic {topic!r} can have one partition only: {self.url} has no {Feature.PARTITIONS}")
        try:
            (self._folder / f"{topic}.jsonl").touch(exist_ok=False)
        except FileExistsError:
            raise TopicExistsError(f"topic {topic!r} exists already") from None

    def checkpoint_url(self, *, in_stream: bool) -> str:
        return f"cellar:{self._folder / 'checkpoints.db'}"

    def close(self) -> None:
        """Nothing is held open."""


def open_stream(url: str, options: Mapping[str, Any]) -> Stream:
    unknown = options.keys() - {"create"}
    if unknown:
        raise ConfigError(f"jsonl: URLs have no option {min(unknown)!r}; they have create")
    folder = Path(url.partition(":")[2]).absolute()
    folder.mkdir(parents=True, exist_ok=options.get("create", True))
    return JsonLines(url, folder)


def open_checkpoints(url: str, stream: Stream | None) -> CheckpointStore:
    return SqliteCheckpoints(url.partition(":")[2])


def open_dead_letters(url: str) -> DeadLetters:
    return SqliteDeadLetters(Path(url.partition(":")[2]))


def fields_of(record: NewRecord) -> list[Any]:
    """A record as JSON has it."""
    headers = [[name, _text(value)] for name, value in record.headers]
    stamp_ms = record.timestamp_ms or round(time.time() * 1000)
    return [_text(record.key), _text(record.value), headers, stamp_ms]


def record_of(topic: str, offset: int, fields: list[Any]) -> Record:
    key, value, headers, stamp_ms = fields
    pairs = tuple((name, _bytes(text)) for name, text in headers)
    return Record(topic, 0, offset, _bytes(key), _bytes(value), pairs, stamp_ms)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
