"""Channels: direct transport that keeps nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from penstock.abc.features import Features
from penstock.model import NewRecord, Record


@runtime_checkable
class Channel(Protocol):
    """Direct transport that keeps nothing: what is sent while nobody listens is lost.

    What it may have besides are `Acknowledging`, for senders that wait for an answer, and `CountingLosses`. It begins
    to listen at the first `listen`, and to send at the first `send`: a channel may be able to do only one of the two,
    and raises ConfigError for the other. One thread listens; others may send. Errors that may pass are a
    BrokerUnavailableError or StreamError: the caller tries again.
    """

    @property
    def name(self) -> str:
        """In records, metrics and logs. It may be the name of a topic."""

    @property
    def features(self) -> Features: ...

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        """At most `limit` records that arrived, as soon as there is one; none after `wait_s`.

        Their `topic` is the name of the channel, their `partition` 0, and their `offset` differs from that of every
        other record that this object returned. What arrives between two calls waits in a buffer of limited size.
        """

    def send(self, records: Sequence[NewRecord]) -> None:
        """Hand records to the transport, or raise. With `Feature.ANSWERS`, returns when the receiver has taken them."""

    def close(self) -> None:
        """Stop listening and sending. May be called more than once."""


@runtime_checkable
class Acknowledging(Protocol):
    """A channel whose senders wait for an answer: they send again what was not acknowledged.

    A listener answers for every record, once it is stored where it cannot be lost. A sender that gets no answer in time
    takes the record as refused.
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
        """How many records are known to be lost since it was opened."""
