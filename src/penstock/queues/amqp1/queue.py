"""A queue of an AMQP 1.0 broker."""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.abc import Delivery, Feature, Features, Outcome
from penstock.errors import ConfigError, UrlError
from penstock.model import NewRecord, Record
from penstock.queues.amqp1.link import Amqp1Link, Arrival
from penstock.queues.amqp1.login import login_of
from penstock.queues.amqp1.messages import decoded_message, delayed_copy, encoded_message
from penstock.queues.amqp1.settings import Amqp1Settings
from penstock.queues.queue_base import QueueBase, check_limit
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of

logger = logging.getLogger(__name__)

FEATURES: Final[Features] = frozenset({Feature.KEYS, Feature.HEADERS, Feature.REDELIVERY, Feature.DURABLE})
RETRIES: Final[Features] = frozenset({Feature.DELAYED_REDELIVERY, Feature.DELIVERY_COUNT})
"""With `retries=broker`."""
_PORTS: Final = {"amqp1": 5672, "amqps1": 5671}


def open_amqp1(url: str, options: Mapping[str, Any]) -> Amqp1Queue:
    """`amqp1:` and `amqps1:` URLs, as `penstock.streams.schemes` finds them."""
    where = parse_backend_url(url, _PORTS.get(url.partition(":")[0].strip().lower(), 5672))
    if not where.hosts or not where.path.strip("/"):
        raise UrlError(f"{where.shown!r} is not amqp1://HOST:PORT/QUEUE")
    return Amqp1Queue(where, settings_of(where, Amqp1Settings, options))


@dataclass(frozen=True, slots=True, eq=False)
class Amqp1Delivery:
    """`abc.Delivery`. Deliveries of a lost connection, an earlier `generation`, cannot be settled."""

    record: Record
    attempt: int
    tag: int
    generation: int
    message: bytes
    """What a delayed copy is made of; empty if none will be."""


class Amqp1Queue(QueueBase[Amqp1Delivery]):
    """`abc.Queue` and `abc.BatchSettling` on a queue of an AMQP 1.0 broker. Any thread may use it."""

    def __init__(self, url: BackendUrl, settings: Amqp1Settings) -> None:
        super().__init__(url.path, Amqp1Delivery)
        self._settings = settings
        self._sender = uuid.uuid4().hex
        """Makes message ids unique, together with a number."""
        self._numbers = itertools.count(1)
        container = f"{settings.client_id}-{self._sender[:8]}"
        self._link = Amqp1Link(url.shown, url.hosts, url.path, login_of(url, settings, container), settings)
        self._link.start()
        given = settings.dead_letters
        self._keeps_rejected = self._link.product.keeps_rejected if given is None else given
        self.features = FEATURES | ({Feature.DEAD_LETTERS} if self._keeps_rejected else set())
        if settings.retries == "broker":
            if not self._link.offers_delays:
                self._link.close()
                raise ConfigError(
                    f"retries=broker needs delayed delivery, which {self._link.product} at {url.shown} does not offer: "
                    "use retries=consumer"
                )
            self.features |= RETRIES

    @property
    def product(self) -> str:
        """What the broker says it is, with its version."""
        return str(self._link.product)

    def receive(self, limit: int, wait_s: float) -> Sequence[Amqp1Delivery]:
        check_limit(limit)
        return [self._decoded(arrival) for arrival in self._link.take(limit, wait_s)]

    def _decoded(self, arrival: Arrival) -> Amqp1Delivery:
        try:
            record, earlier = decoded_message(self.name, arrival.data)
        except ValueError as error:
            logger.warning("a message of %s is not valid AMQP, its bytes are the value: %s", self.name, error)
            record, earlier = Record(self.name, 0, arrival.tag, None, arrival.data), 0
        message = arrival.data if self._settings.retries == "broker" else b""
        return Amqp1Delivery(record, earlier + 1, arrival.tag, arrival.generation, message)

    def settle_all(
        self, deliveries: Sequence[Delivery], outcome: Outcome, delay_s: float = 0.0, reason: str = ""
    ) -> Sequence[Delivery]:
        """Settle deliveries. A `delay_s` needs `retries=broker`, else ConfigError. The broker is told the reason of
        a REJECT."""
        ours = self._ours(deliveries)
        if delay_s and self._settings.retries != "broker":
            raise ConfigError(
                f"{self.name} cannot delay a delivery: without retries=broker it has no {Feature.DELAYED_REDELIVERY}"
            )
        if delay_s and outcome in (Outcome.RETRY, Outcome.RELEASE):
            return self._delay(ours, outcome, delay_s)
        return self._settle(ours, outcome, reason)

    def _settle(self, deliveries: Sequence[Amqp1Delivery], outcome: Outcome, reason: str = "") -> Sequence[Delivery]:
        return self._link.settle(deliveries, outcome, self._keeps_rejected, reason)

    def _delay(self, deliveries: Sequence[Amqp1Delivery], outcome: Outcome, delay_s: float) -> Sequence[Delivery]:
        """Send a delayed copy of each delivery, then accept it. If accepting fails, the record is delivered twice."""
        held = self._link.held(deliveries)
        late: list[Delivery] = [each for each in deliveries if each.tag not in held]
        copies, copied, at_once = [], [], []
        for delivery in deliveries:
            if delivery.tag not in held:
                continue
            copy = self._copy_of(delivery, outcome, delay_s)
            if copy is None:
                at_once.append(delivery)
            else:
                copies.append(copy)
                copied.append(delivery)
        if copies:
            self._link.send(copies)
            late += self._settle(copied, Outcome.DONE)
        if at_once:
            late += self._settle(at_once, outcome)
        return late

    def _copy_of(self, delivery: Amqp1Delivery, outcome: Outcome, delay_s: float) -> bytes | None:
        """The message to send again after the delay. None if it is not valid, or too large for the broker: such a
        record is redelivered at once."""
        attempts = delivery.attempt if outcome is Outcome.RETRY else delivery.attempt - 1
        try:
            copy = delayed_copy(delivery.message, attempts, delay_s, time.time())
        except ValueError:  # no valid message, as `receive` has logged
            return None
        return copy if copy is not None and self._link.takes(copy) else None

    def send(self, records: Sequence[NewRecord]) -> None:
        if records:
            by_key = self._settings.group_by_key
            self._link.send(
                [encoded_message(record, f"{self._sender}-{next(self._numbers)}", by_key) for record in records]
            )

    def close(self) -> None:
        self._link.close()
