"""Channels: direct transport that keeps nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from penstock.abc.features import Features
from penstock.model import NewRecord, Record


@runtime_checkable
class Channel(Protocol):
    """Direct transport that keeps nothing: what is sent while nobody listens is lost.

    It begins to listen at the first `listen`, and to send at the first `send`. A channel may be able to do only one of
    the two, and raises ConfigError for the other. Which side binds an address and which one connects to it is a matter
    of the transport, and of a setting where both are possible; either side may start first, and recovers by itself when
    the other one was restarted. One thread listens; any number may send.

    It has `Acknowledging` if, and only if, it has `Feature.ANSWERS`; the same holds for `CountingLosses` and
    `Feature.LOSS_COUNT`. A channel without `Feature.KEYS` or `Feature.HEADERS` drops keys or headers.

    Errors that may pass are a BrokerUnavailableError or StreamError: the caller tries again. After `close`, every
    method raises ConnectionClosedError.
    """

    @property
    def name(self) -> str:
        """In records, metrics and logs. It can be the name of a topic (`penstock.model.is_topic_name`)."""

    @property
    def features(self) -> Features: ...

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        """At most `limit` records that arrived, as soon as there is one; none after `wait_s`.

        Their `topic` is the name of the channel, their `partition` 0, and their `offset` differs from that of every
        other record that this object returned. What arrives between two calls waits in a buffer of limited size.
        """

    def send(self, records: Sequence[NewRecord]) -> None:
        """Hand records to the transport, in order, or raise. Never blocks for ever.

        Without `Feature.ANSWERS`: a return says nothing about the receiver. While nobody listens, records are lost,
        wait in a buffer of limited size, or a BrokerUnavailableError is raised.

        With `Feature.ANSWERS`: returns when the receiver has acknowledged every record. A refused record is a
        DeliveryError with the receiver's reason, `retriable` if sending again may help; no answer in time, or nobody
        who listens, is a BrokerUnavailableError. Other records of the same call may have been stored all the same.

        A record that the transport cannot carry is a RecordTooLargeError, and nothing of the call is sent.
        """

    def close(self) -> None:
        """Stop listening and sending; a waiting `listen` raises ConnectionClosedError. May be called more than once."""


@runtime_checkable
class Acknowledging(Protocol):
    """A channel whose senders wait for an answer: they send again what was not acknowledged.

    A listener answers for every record, in any order, once it is stored where it cannot be lost. A sender that gets no
    answer in time takes the record as refused. Answering too late, or when the sender is gone, is harmless.
    """

    def acknowledge(self, records: Sequence[Record]) -> None:
        """Tell the senders of these records that they are stored."""

    def refuse(self, records: Sequence[Record], reason: str, *, again: bool) -> None:
        """Tell the senders that these were not stored. `again`: it was not their fault, so sending again may help."""


@runtime_checkable
class CountingLosses(Protocol):
    """A channel that knows what it lost: between sender and listener, or because its buffer was full."""

    @property
    def lost(self) -> int:
        """How many records are known to be lost since it was opened, once a later one has arrived."""


@runtime_checkable
class RecognisingRepeats(Protocol):
    """A channel that recognises what a sender sends again because it got no answer, and does not hand it out twice.

    It remembers that of the records it acknowledged. Whoever stores records for good tells it after a restart which
    ones are there, before the first `listen`, and keeps them at least for `repeat_window_s`.
    """

    @property
    def repeat_window_s(self) -> float:
        """How long a record is remembered; 0: not at all."""

    def remember(self, records: Sequence[Record]) -> None:
        """Recognise repeats of these records, which were stored before this object was opened."""
