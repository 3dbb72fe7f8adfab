"""A queue of RabbitMQ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.abc import Delivery, Feature, Features, Outcome
from penstock.errors import ConfigError, UrlError
from penstock.model import NewRecord
from penstock.queues.amqp.link import AmqpDelivery, AmqpLink
from penstock.queues.amqp.messages import encoded_headers
from penstock.queues.amqp.settings import AmqpSettings
from penstock.queues.queue_base import QueueBase, check_limit
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of

FEATURES: Final[Features] = frozenset(
    {Feature.KEYS, Feature.HEADERS, Feature.REDELIVERY, Feature.DURABLE, Feature.DEAD_LETTERS}
)
_PORTS: Final = {"amqp": 5672, "amqps": 5671}


def open_amqp(url: str, options: Mapping[str, Any]) -> AmqpQueue:
    """`amqp:` and `amqps:` URLs, as `penstock.streams.schemes` finds them."""
    where = parse_backend_url(url, _PORTS.get(url.partition(":")[0].strip().lower(), 5672))
    vhost, slash, name = where.path.partition("/")
    if not slash:
        vhost, name = "/", vhost
    if not where.hosts or not name:
        raise UrlError(f"{where.shown!r} is not amqp://HOST:PORT/QUEUE or amqp://HOST:PORT/VHOST/QUEUE")
    return AmqpQueue(where, vhost, name, settings_of(where, AmqpSettings, options))


class AmqpQueue(QueueBase[AmqpDelivery]):
    """`abc.Queue` and `abc.BatchSettling` on a queue of RabbitMQ. Any thread may use it."""

    def __init__(self, url: BackendUrl, vhost: str, name: str, settings: AmqpSettings) -> None:
        super().__init__(name, AmqpDelivery)
        self._link = AmqpLink(url, vhost, name, settings)
        self._link.start()
        self.features = FEATURES if settings.dead_letters else FEATURES - {Feature.DEAD_LETTERS}

    def receive(self, limit: int, wait_s: float) -> Sequence[AmqpDelivery]:
        check_limit(limit)
        return self._link.take(limit, wait_s)

    def settle_all(
        self, deliveries: Sequence[Delivery], outcome: Outcome, delay_s: float = 0.0, reason: str = ""
    ) -> Sequence[Delivery]:
        """RabbitMQ keeps no reason, and has no delayed redelivery: a `delay_s` is a ConfigError."""
        if delay_s:
            raise ConfigError(f"{self.name} cannot delay a delivery: RabbitMQ has no {Feature.DELAYED_REDELIVERY}")
        return self._link.settle(self._ours(deliveries), outcome)

    def send(self, records: Sequence[NewRecord]) -> None:
        if records:
            self._link.send([(record.value or b"", encoded_headers(record)) for record in records])

    def waiting(self) -> int:
        """The messages in the queue that no consumer has, and those that were sent ahead to this one."""
        return self._link.waiting()

    def close(self) -> None:
        self._link.close()
