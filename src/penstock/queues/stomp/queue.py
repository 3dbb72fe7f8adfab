"""`abc.Queue` on a queue of a STOMP broker, and `stomp:` URLs."""

from __future__ import annotations

import itertools
import re
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.abc import Delivery, Feature, Features, Outcome
from penstock.errors import ConfigError, ConnectionClosedError, UrlError
from penstock.model import NewRecord
from penstock.queues.pending import too_large
from penstock.queues.queue_base import QueueBase, check_limit
from penstock.queues.stomp.link import ARTEMIS, Link, Message, StompDelivery, size_bytes
from penstock.queues.stomp.messages import copied, encode
from penstock.queues.stomp.settings import StompSettings
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of

FEATURES: Final[Features] = frozenset({Feature.KEYS, Feature.HEADERS, Feature.REDELIVERY, Feature.DURABLE})
"""DEAD_LETTERS on ActiveMQ Classic, and where the setting `dead_letters` names a queue."""
PORTS: Final = {"stomp": 61613, "stomp+ssl": 61614}
CLASSIC: Final = "ActiveMQ/"
RABBITMQ: Final = "RabbitMQ/"
RABBITMQ_FRAME_BYTES: Final = 4 << 20
MOST_AT_ONCE: Final = 1_000
"""How many messages one transaction has."""


def open_stomp(url: str, options: Mapping[str, Any]) -> StompQueue:
    """`stomp:` and `stomp+ssl:` URLs, as `penstock.streams.schemes` finds them."""
    where = parse_backend_url(url, PORTS.get(url.partition("://")[0].strip().lower(), 61613))
    if not where.hosts or not where.path:
        raise UrlError(f"{where.shown!r} is not stomp://HOST:PORT/QUEUE")
    for secret in (where.user, where.password):
        if secret is not None and any(character in secret for character in "\r\n\0"):
            raise UrlError(f"the user or password for {where.shown} has a line break, which STOMP cannot transmit")
    settings = settings_of(where, StompSettings, options)
    try:
        destination = settings.destination.format(queue=where.path)
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(f"destination={settings.destination!r} may have {{queue}} and no other braces") from error
    return StompQueue(where, where.path, destination, settings)


class StompQueue(QueueBase[StompDelivery]):
    """`abc.Queue` and `abc.BatchSettling` on a queue of a STOMP broker. Any thread may use it.

    It has a connection for sending, and from the first `receive` on another one for receiving and settling.
    """

    def __init__(self, url: BackendUrl, name: str, destination: str, settings: StompSettings) -> None:
        super().__init__(name, StompDelivery)
        self._url = url
        self._destination = destination
        self._settings = settings
        self._sender = Link(url, name, settings)
        self.server = self._sender.server
        """What the broker calls itself, such as `ActiveMQ/5.18.3`."""
        if settings.send_delay_s and not self.server.startswith((CLASSIC, ARTEMIS)):
            self._sender.close()
            raise ConfigError(
                f"{url.shown} is {self.server or 'a broker'} that cannot delay messages: omit send_delay_s"
            )
        has_letters = settings.dead_letters or self.server.startswith(CLASSIC)
        self.features = FEATURES | {Feature.DEAD_LETTERS} if has_letters else FEATURES
        self._receiver: Link | None = None
        self._opening = threading.Lock()
        self._is_closed = False
        self._unique = uuid.uuid4().hex
        self._numbers = itertools.count(1)

    def receive(self, limit: int, wait_s: float) -> Sequence[StompDelivery]:
        check_limit(limit)
        return self._receiving().take(limit, wait_s)

    def settle_all(
        self, deliveries: Sequence[Delivery], outcome: Outcome, delay_s: float = 0.0, reason: str = ""
    ) -> Sequence[Delivery]:
        """Settle deliveries. The reason goes to `dead_letters`. ConfigError for a `delay_s`: STOMP has no delayed
        redelivery."""
        if delay_s:
            raise ConfigError(f"{self.name} cannot delay a delivery: STOMP has no {Feature.DELAYED_REDELIVERY}")
        ours = self._ours(deliveries)
        link = self._receiving()
        if outcome is Outcome.DONE:
            return link.settle(ours, _acknowledged, "ACK")
        if outcome is Outcome.REJECT and self._settings.dead_letters:
            return link.settle(ours, lambda each: (self._letter(each, reason), *_acknowledged(each)), "ACK")
        if outcome is Outcome.REJECT or self.server.startswith(RABBITMQ):
            requeue = "false" if outcome is Outcome.REJECT else "true"
            return link.settle(ours, lambda each: [((("id", each.ack), ("requeue", requeue)), b"")], "NACK")
        # ActiveMQ takes a NACK for a rejection, and has no word for "again": its JMS client, too, repeats by itself.
        return link.give_again(ours, counts=outcome is Outcome.RETRY)

    def send(self, records: Sequence[NewRecord]) -> None:
        """Send records. Each thousand are one transaction: all of them are stored, or none."""
        messages = [self._message(record) for record in records]
        self._check_size(max(map(size_bytes, messages), default=0))
        for first in range(0, len(messages), MOST_AT_ONCE):
            # RabbitMQ answers a COMMIT before it has stored the messages, ActiveMQ and Artemis after it.
            confirm_each = not self.server.startswith((CLASSIC, ARTEMIS))
            self._sender.send(messages[first : first + MOST_AT_ONCE], confirm_each=confirm_each)

    def _check_size(self, largest_bytes: int) -> None:
        most_bytes = self._settings.max_frame_bytes
        if most_bytes is None and int(re.findall(r"^RabbitMQ/(\d+)|$", self.server)[0] or 0) >= 4:
            most_bytes = RABBITMQ_FRAME_BYTES
        if most_bytes is not None and largest_bytes > most_bytes:
            remedy = "raise stomp.max_frame_size of RabbitMQ and max_frame_bytes here"
            text = f"it has {largest_bytes} bytes, and a frame may have {most_bytes}"
            raise too_large(self.name, self._url.shown, text, remedy)

    def close(self) -> None:
        with self._opening:
            self._is_closed = True
        self._sender.close()
        if self._receiver is not None:
            self._receiver.close()

    def _receiving(self) -> Link:
        with self._opening:
            if self._is_closed:
                raise ConnectionClosedError(f"the connection to {self._url.shown} is closed")
            if self._receiver is None:
                self._receiver = Link(self._url, self.name, self._settings, self._destination)
            return self._receiver

    def _message(self, record: NewRecord) -> Message:
        settings = self._settings
        headers, body = encode(record, f"{self._unique}-{next(self._numbers)}", settings.text)
        headers += self._addressed(self._destination)
        if settings.priority is not None:
            headers.append(("priority", str(settings.priority)))
        if settings.send_delay_s:
            headers.append(("AMQ_SCHEDULED_DELAY", str(round(settings.send_delay_s * 1000))))
        if settings.ttl_s is not None:
            lifetime_ms = round((settings.ttl_s + settings.send_delay_s) * 1000)
            headers.append(("expires", str(time.time_ns() // 1_000_000 + lifetime_ms)))
            if self.server.startswith(RABBITMQ):
                headers.append(("expiration", str(lifetime_ms)))
        return headers, body

    def _letter(self, delivery: StompDelivery, reason: str) -> Message:
        destination = self._settings.destination.format(queue=self._settings.dead_letters)
        return [*copied(delivery.headers, delivery.body, reason), *self._addressed(destination)], delivery.body

    def _addressed(self, destination: str) -> list[tuple[str, str]]:
        kind = [("destination-type", "ANYCAST")] if self.server.startswith(ARTEMIS) else []
        return [("destination", destination), ("persistent", "true"), *kind]


def _acknowledged(delivery: StompDelivery) -> list[Message]:
    return [((("id", delivery.ack),), b"")]
