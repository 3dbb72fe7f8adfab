"""`RequestChannel`: what channels with answers have in common, whatever their transport is."""

from __future__ import annotations

import abc
import threading
from collections.abc import Sequence
from typing import ClassVar, Protocol

from penstock.abc import Feature, Features
from penstock.channels.answers import Refusal
from penstock.channels.endpoints import Endpoint
from penstock.channels.requests import RequestInbox
from penstock.errors import ConfigError, ConnectionClosedError
from penstock.model import NewRecord, Record


class ListeningSide(Protocol):
    """An open socket that receives requests into its inbox, and sends the answers."""

    inbox: RequestInbox

    def taken(self) -> None:
        """Receive again: there may be room in the inbox."""

    def close(self) -> None: ...


class SendingSide(Protocol):
    """An open socket that sends requests and receives the answers."""

    def send(self, records: Sequence[NewRecord]) -> None: ...

    def close(self) -> None: ...


class RequestChannel(abc.ABC):
    """`abc.Channel` and `abc.Acknowledging`. Each side is opened when it is first used."""

    FEATURES: ClassVar[Features] = frozenset({Feature.ANSWERS, Feature.KEYS, Feature.HEADERS})
    """The features of frames. Plain messages have neither keys nor headers."""

    def __init__(self, endpoint: Endpoint, *, is_plain: bool) -> None:
        self._endpoint = endpoint
        self._is_plain = is_plain
        self._opening = threading.Lock()
        self._closing = False
        self._listener: ListeningSide | None = None
        self._sender: SendingSide | None = None

    @abc.abstractmethod
    def _open_listener(self) -> ListeningSide: ...

    @abc.abstractmethod
    def _open_sender(self) -> SendingSide: ...

    @property
    def name(self) -> str:
        return self._endpoint.name

    @property
    def features(self) -> Features:
        return frozenset({Feature.ANSWERS}) if self._is_plain else self.FEATURES

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        with self._opening:
            self._check_open()
            if self._listener is None:
                self._listener = self._open_listener()
        records = self._listener.inbox.take(limit, wait_s)
        if records:
            self._listener.taken()
        return records

    def acknowledge(self, records: Sequence[Record]) -> None:
        self._settle(records, None)

    def refuse(self, records: Sequence[Record], reason: str, *, again: bool) -> None:
        self._settle(records, Refusal(reason, again))

    def send(self, records: Sequence[NewRecord]) -> None:
        if self._is_plain:
            raise ConfigError(
                f"{self._endpoint.shown}: with pattern=request, format=plain is for listening to other programs; omit "
                "it to send"
            )
        with self._opening:
            self._check_open()
            if not records:
                return
            if self._sender is None:
                self._sender = self._open_sender()
        self._sender.send(records)

    def close(self) -> None:
        with self._opening:
            if self._closing:
                return
            self._closing = True
        for side in (self._listener, self._sender):
            if side is not None:
                side.close()

    def _settle(self, records: Sequence[Record], refusal: Refusal | None) -> None:
        self._check_open()
        if self._listener is not None:
            self._listener.inbox.settle(records, refusal)

    def _check_open(self) -> None:
        if self._closing:
            raise ConnectionClosedError(f"the channel {self._endpoint.shown} is closed")
