"""Channels in the memory of this process, for tests: `memory-channel:NAME`.

One object listens and any number send. What is sent while nobody listens is lost. With `answers=true`, senders wait for
the listener's answer instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from penstock.abc import Feature, Features
from penstock.channels.answers import OpenRequests, Refusal
from penstock.channels.receive_buffer import Arrived, ReceiveBuffer
from penstock.errors import BrokerUnavailableError
from penstock.model import NewRecord, Record, check_topic_name
from penstock.streams.backend_url import check_positive, parse_backend_url, settings_of

SCHEME: Final = "memory-channel"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChannelSettings:
    """Settings of a `memory-channel:` URL."""

    answers: bool = False
    """Whether senders wait for the listener's answer. Both sides must agree."""
    buffer: int = 10_000
    """How many records wait for `listen`; what does not fit is lost, or refused where there are answers."""
    answer_timeout_s: float = 30.0
    """How long `send` waits for the answer."""

    def __post_init__(self) -> None:
        check_positive(self, "answer_timeout_s")


def open_memory(url: str, options: Mapping[str, Any]) -> MemoryChannel | AnsweringMemoryChannel:
    """`memory-channel:` URLs, as `penstock.streams.schemes` finds them."""
    where = parse_backend_url(url)
    settings = settings_of(where, MemoryChannelSettings, options)
    name = where.path or "channel"
    check_topic_name(name)
    return (AnsweringMemoryChannel if settings.answers else MemoryChannel)(name, settings)


class _Listening:
    """The listening side of both channels."""

    def __init__(self, name: str = "channel", settings: MemoryChannelSettings | None = None) -> None:
        self._name = name
        self._settings = settings or MemoryChannelSettings()
        self._buffer = ReceiveBuffer(name, self._settings.buffer)

    @property
    def name(self) -> str:
        return self._name

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        self._buffer.check_open()
        with _changed:
            if _listening.setdefault(self._name, self) is not self:
                raise BrokerUnavailableError(f"another object of this process listens to {SCHEME}:{self._name}")
        return self._buffer.take(limit, wait_s)

    def close(self) -> None:
        with _changed:
            if _listening.get(self._name) is self:
                del _listening[self._name]
            _changed.notify_all()
        self._buffer.close()


class MemoryChannel(_Listening):
    """`abc.Channel` and `abc.CountingLosses` in this process."""

    features: ClassVar[Features] = frozenset({Feature.KEYS, Feature.HEADERS, Feature.LOSS_COUNT})

    @property
    def lost(self) -> int:
        return self._buffer.lost

    def send(self, records: Sequence[NewRecord]) -> None:
        self._buffer.check_open()
        listener = _listening.get(self._name)
        if isinstance(listener, MemoryChannel):
            for record in records:
                listener._buffer.put(*_arrived(record))


class AnsweringMemoryChannel(_Listening):
    """`abc.Channel` and `abc.Acknowledging` in this process."""

    features: ClassVar[Features] = frozenset({Feature.KEYS, Feature.HEADERS, Feature.ANSWERS})

    def __init__(self, name: str = "channel", settings: MemoryChannelSettings | None = None) -> None:
        super().__init__(name, settings)
        self._requests = OpenRequests()

    def acknowledge(self, records: Sequence[Record]) -> None:
        self._buffer.check_open()
        self._requests.settle(records)

    def refuse(self, records: Sequence[Record], reason: str, *, again: bool) -> None:
        self._buffer.check_open()
        self._requests.settle(records, Refusal(reason, again))

    def send(self, records: Sequence[NewRecord]) -> None:
        self._buffer.check_open()
        if not records:
            return
        shown = f"{SCHEME}:{self._name}"
        listener = _listening.get(self._name)
        if not isinstance(listener, AnsweringMemoryChannel):
            raise BrokerUnavailableError(f"nobody listens to {shown}")
        answers: list[Refusal | None] = []

        def reply(refusal: Refusal | None) -> None:
            with _changed:
                answers.append(refusal)
                _changed.notify_all()

        arrived = [_arrived(record) for record in records]
        if not listener._buffer.put_request(arrived, lambda taken: listener._requests.add(taken, reply)):
            raise Refusal("its buffer is full", again=True).error(shown)
        with _changed:
            _changed.wait_for(
                lambda: answers or _listening.get(self._name) is not listener, self._settings.answer_timeout_s
            )
        if not answers:
            raise BrokerUnavailableError(
                f"{shown}: the listener was closed, or did not answer within {self._settings.answer_timeout_s:g} s; "
                "whether it has the records is unknown"
            )
        if answers[0] is not None:
            raise answers[0].error(shown)


_changed: Final = threading.Condition()
_listening: Final[dict[str, _Listening]] = {}
"""Who listens, by name. `_changed` guards it and tells of answers."""


def _arrived(record: NewRecord) -> Arrived:
    stamp_ms = time.time_ns() // 1_000_000 if record.timestamp_ms is None else record.timestamp_ms
    return record.value, record.key, record.headers, stamp_ms
