"""What queues of other systems have in common: their name, their limits, and settling one delivery or many."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Generic, TypeVar

from penstock.abc import Delivery, Features, Outcome
from penstock.errors import ConfigError, StaleDeliveryError

D = TypeVar("D", bound=Delivery)


class QueueBase(abc.ABC, Generic[D]):
    """A part of `abc.Queue` and `abc.BatchSettling`."""

    features: Features

    def __init__(self, name: str, kind: type[D]) -> None:
        """`kind` is the class of its deliveries."""
        self.name = name
        self._kind = kind

    @abc.abstractmethod
    def settle_all(
        self, deliveries: Sequence[Delivery], outcome: Outcome, delay_s: float = 0.0, reason: str = ""
    ) -> Sequence[Delivery]: ...

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        if self.settle_all([delivery], outcome, delay_s):
            raise StaleDeliveryError(self._stale(self._ours([delivery])[0]))

    def _stale(self, delivery: D) -> str:
        """Why a delivery cannot be settled."""
        return (
            f"a delivery of {self.name} was settled twice, or its connection was lost: the record was delivered "
            "again, or will be"
        )

    def _ours(self, deliveries: Sequence[Delivery]) -> list[D]:
        found: list[D] = []
        for delivery in deliveries:
            if not isinstance(delivery, self._kind):
                raise ConfigError(f"{delivery!r} is not a delivery of this queue")
            found.append(delivery)
        return found


def check_limit(limit: int) -> None:
    """Raise ConfigError unless `limit` is valid for `abc.Queue.receive`."""
    if limit < 1:
        raise ConfigError(f"limit={limit} must be an integer >= 1")
