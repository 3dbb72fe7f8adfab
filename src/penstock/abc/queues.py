"""Queues: systems that deliver a record and forget it once it is settled."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from penstock.abc.features import Features
from penstock.model import NewRecord, Record


class Outcome(StrEnum):
    """How a delivery of a queue is settled."""

    DONE = "done"
    RETRY = "retry"
    """It failed: deliver it again."""
    RELEASE = "release"
    """It was not handled: deliver it again. A queue with `Feature.DELIVERY_COUNT` does not count this delivery."""
    REJECT = "reject"
    """Never deliver it again. A queue with `Feature.DEAD_LETTERS` keeps it there."""


class Delivery(Protocol):
    """A record that a queue has delivered."""

    @property
    def record(self) -> Record:
        """Its `topic` is the name of the queue. Its `offset` is the same at each delivery, and differs from that of
        other records of the queue: where the queue has no such number, use a hash of what identifies the message."""

    @property
    def attempt(self) -> int:
        """1 when it was never delivered before, as far as the queue can tell. With `Feature.DELIVERY_COUNT`, consumers
        take earlier deliveries for failed attempts; without it, it only informs."""


@runtime_checkable
class Queue(Protocol):
    """A system that delivers a record and forgets it once it is settled.

    What it may have besides are `Extending`, for deliveries that expire, `BatchSettling` and `CountingWaiting`. Several
    threads receive and settle at the same time. Errors that may pass are a BrokerUnavailableError, StreamError or
    StoreUnavailableError: the consumer tries again.
    """

    @property
    def name(self) -> str:
        """The name of the queue, in dead letters, metrics and logs. It may be the name of a topic."""

    @property
    def features(self) -> Features: ...

    def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        """At most `limit` deliveries, as soon as there is one; none after `wait_s`.

        A delivery that is not settled, because its receiver died or let the visibility timeout pass, is delivered
        again.
        """

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        """Say what became of it. A `delay_s` for RETRY or RELEASE needs `Feature.DELAYED_REDELIVERY`.

        Raises StaleDeliveryError when it is too late: the record was settled before, or delivered again.
        """

    def send(self, records: Sequence[NewRecord]) -> None:
        """Add records. Returns when the queue has stored them all."""

    def close(self) -> None:
        """Close the connection. What it received and did not settle is delivered again."""


@runtime_checkable
class Extending(Protocol):
    """A queue whose deliveries expire after a visibility timeout, which can be restarted.

    Consumers extend what they hold every third of `visibility_timeout_s`, so handlers may take longer than that.
    """

    @property
    def visibility_timeout_s(self) -> float: ...

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Restart the visibility timeout of these deliveries. Returns those that were too late."""


@runtime_checkable
class BatchSettling(Protocol):
    """A queue that settles many deliveries in one request, and keeps the reason."""

    def settle_all(
        self, deliveries: Sequence[Delivery], outcome: Outcome, delay_s: float = 0.0, reason: str = ""
    ) -> Sequence[Delivery]:
        """Settle all with one outcome. Returns those that were too late. `reason` is the error of RETRY or REJECT."""


@runtime_checkable
class CountingWaiting(Protocol):
    """A queue that tells how many records wait in it."""

    def waiting(self) -> int:
        """How many records could be delivered now: no receiver has them, and no delay holds them back. It may be
        approximate, and some seconds old.

        Health and metrics of a consumer call it: it takes a few seconds at most, and raises BrokerUnavailableError when
        the queue does not answer.
        """
