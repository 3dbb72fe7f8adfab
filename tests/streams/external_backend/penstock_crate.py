"""A queue of files, `crate:FOLDER`, and a channel of datagrams, `post:PATH`, for the processes of one machine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock_jsonl import fields_of, record_of  # type: ignore[import-not-found]  # installed beside it

from penstock.abc import Channel, Delivery, Feature, Features, Outcome, Queue
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    RecordTooLargeError,
    StaleDeliveryError,
)
from penstock.model import NewRecord, Record

VISIBILITY_S: Final = 30.0
LARGEST_BYTES: Final = 60_000


@dataclass(frozen=True, slots=True)
class CrateDelivery:
    record: Record
    file: Path
    attempt: int = 1


class CrateQueue:
    """`ready` has a file for each record, `taken` those that are delivered. Renaming a file takes it."""

    features: Features = frozenset({Feature.KEYS, Feature.HEADERS, Feature.DURABLE, Feature.REDELIVERY})

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._ready, self._taken = folder / "ready", folder / "taken"
        for each in (self._ready, self._taken):
            each.mkdir(parents=True, exist_ok=True)
        self._mine: set[CrateDelivery] = set()

    def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        try:
            return self.poll_files(limit, wait_s)
        except TimeoutError:
            return []

    def poll_files(self, limit: int, timeout_s: float) -> list[CrateDelivery]:
        """Take records, as soon as there is one. TimeoutError when none has come."""
        until_s = time.monotonic() + timeout_s
        while not (deliveries := self._take(limit)):
            if time.monotonic() >= until_s:
                raise TimeoutError(f"nothing was sent to {self.name} within {timeout_s:g} s")
            time.sleep(0.01)
        return deliveries

    def _take(self, limit: int) -> list[CrateDelivery]:
        for file in self._taken.iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was settled meanwhile
                if time.time() - file.stat().st_mtime > VISIBILITY_S:
                    file.rename(self._ready / file.stem)
        deliveries = []
        for file in sorted(self._ready.iterdir())[:limit]:
            taken = self._taken / f"{file.name}.{uuid.uuid4().hex}"
            with contextlib.suppress(FileNotFoundError):  # somebody else was faster
                os.utime(file)
                file.rename(taken)
                offset = int(file.name[-12:], 16)
                record = record_of(self.name, offset, json.loads(taken.read_text()))
                deliveries.append(CrateDelivery(record, taken))
        self._mine.update(deliveries)
        return deliveries

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        if not isinstance(delivery, CrateDelivery) or delay_s:
            raise ConfigError(f"{self.name} cannot settle {delivery!r} with a delay of {delay_s} s")
        self._mine.discard(delivery)
        try:
            if outcome in (Outcome.RETRY, Outcome.RELEASE):
                delivery.file.rename(self._ready / delivery.file.stem)
            else:
                delivery.file.unlink()
        except FileNotFoundError:
            raise StaleDeliveryError("it was settled before, or delivered again") from None

    def send(self, records: Sequence[NewRecord]) -> None:
        for record in records:
            name = f"{time.time_ns():020}-{uuid.uuid4().hex[:12]}"
            written = self._taken.parent / name
            written.write_text(json.dumps(fields_of(record)))
            written.rename(self._ready / name)

    def close(self) -> None:
        for delivery in list(self._mine):
            with contextlib.suppress(StaleDeliveryError):
                self.settle(delivery, Outcome.RELEASE)


class PostChannel:
    """A datagram for each record. The listener binds the path of the socket."""

    features: Features = frozenset({Feature.KEYS, Feature.HEADERS})

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._is_bound = False
        self._closed = False
        self._offset = 0

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        self._check_open()
        if not self._is_bound:
            self._path.unlink(missing_ok=True)
            self._socket.bind(str(self._path))
            self._is_bound = True
        return list(self._arrived(limit, wait_s))

    def _arrived(self, limit: int, wait_s: float) -> Iterator[Record]:
        self._socket.settimeout(max(wait_s, 0.001))
        for _ in range(limit):
            try:
                data = self._socket.recv(2 * LARGEST_BYTES)
            except (TimeoutError, BlockingIOError):
                return
            yield record_of(self.name, self._offset, json.loads(data))
            self._offset += 1
            self._socket.settimeout(0.0)

    def send(self, records: Sequence[NewRecord]) -> None:
        self._check_open()
        messages = [json.dumps(fields_of(record)).encode() for record in records]
        if max(map(len, messages), default=0) > LARGEST_BYTES:
            raise RecordTooLargeError(f"{self.name} carries messages of at most {LARGEST_BYTES} bytes")
        for message in messages:
            try:
                self._socket.sendto(message, str(self._path))
            except OSError as error:
                raise BrokerUnavailableError(f"nobody listens to {self._path}: {error}") from error

    def close(self) -> None:
        self._closed = True
        self._socket.close()
        if self._is_bound:
            self._path.unlink(missing_ok=True)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"channel {self.name} is closed")


def open_queue(url: str, options: Mapping[str, Any]) -> Queue:
    return CrateQueue(_path(url, options))


def open_channel(url: str, options: Mapping[str, Any]) -> Channel:
    return PostChannel(_path(url, options))


def _path(url: str, options: Mapping[str, Any]) -> Path:
    scheme, _, path = url.partition(":")
    if options:
        raise ConfigError(f"{scheme}: URLs have no options")
    return Path(path).absolute()
