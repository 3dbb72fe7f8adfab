"""In what AMQP 1.0 brokers differ. Each says in its first frame which product it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from penstock.abc import Outcome
from penstock.queues.delivery_limits import has_default_limit

ARTEMIS: Final = "apache-activemq-artemis"
ACTIVEMQ: Final = "ActiveMQ"
QPID: Final = "Apache Qpid Broker-J"
RABBITMQ: Final = "RabbitMQ"

_NAMES: Final = {ARTEMIS: "Artemis", ACTIVEMQ: "ActiveMQ", QPID: "Qpid Broker-J", RABBITMQ: "RabbitMQ"}
_LIMITS: Final = {
    ACTIVEMQ: "wireFormat.maxFrameSize of ActiveMQ's connector",
    ARTEMIS: "journal-buffer-size and journal-file-size of Artemis",
    QPID: "qpid.max_message_size of Qpid",
    RABBITMQ: "max_message_size of RabbitMQ",
}
_OLDEST: Final = {ARTEMIS: (2, 0)}
"""Before, an address named a topic unless it had the prefix of queues of JMS."""
_KEEPING_REJECTED: Final = (ARTEMIS, ACTIVEMQ)
"""These have a queue for dead letters unless somebody has removed it from their configuration."""


@dataclass(frozen=True, slots=True)
class Product:
    """The broker's product, and how it differs from others."""

    kind: str = ""
    """One of the names above, or what the broker calls itself."""
    version: str = ""

    def __str__(self) -> str:
        return f"{_NAMES.get(self.kind, self.kind) or 'AMQP 1.0 broker'} {self.version}".strip()

    @property
    def problem(self) -> str:
        """Why this version cannot be used; empty if it can."""
        oldest = _OLDEST.get(self.kind)
        numbers = tuple(map(int, re.findall(r"\d+", self.version)[:2]))
        if oldest is None or not numbers or numbers >= oldest:
            return ""
        return f"it is {self}, which is too old: {oldest[0]}.{oldest[1]} or newer is needed. Upgrade it"

    @property
    def keeps_rejected(self) -> bool:
        return self.kind in _KEEPING_REJECTED

    @property
    def size_remedy(self) -> str:
        """What to do at the broker about a message that is over its limit."""
        return f"raise {_LIMITS.get(self.kind, 'the limit of the broker')}"

    @property
    def hides_limit(self) -> bool:
        """Whether it says of a message that is over its limit that it cannot read it."""
        return self.kind == ACTIVEMQ

    @property
    def confirms_settlements(self) -> bool:
        """Whether it answers a settlement. Artemis does not; RabbitMQ refuses to be asked."""
        return self.kind == QPID

    @property
    def declares_as_asked(self) -> bool:
        """Whether a queue that it creates survives a restart only if the link asks for it."""
        return self._is_old_rabbitmq

    @property
    def may_limit_deliveries(self) -> bool:
        """Whether a queue has a delivery limit that nobody has asked for."""
        return self.kind == RABBITMQ and has_default_limit(self.version)

    def address_of(self, queue: str) -> str:
        """The address by which links name a queue. RabbitMQ's addresses also say that the name is that of a queue."""
        if self.kind != RABBITMQ or queue.startswith("/"):
            return queue
        return f"/queue/{queue}" if self._is_old_rabbitmq else f"/queues/{quote(queue, safe='')}"

    def state_for(self, outcome: Outcome, keeps_rejected: bool) -> str:
        """The name of the delivery state for an outcome, at this broker."""
        if outcome is Outcome.DONE:
            return "ACCEPTED"
        if outcome is Outcome.RELEASE:
            return "RELEASED"
        if outcome is Outcome.RETRY:
            # RabbitMQ 3 ends the session over a state that it does not know.
            return "RELEASED" if self._is_old_rabbitmq else "MODIFIED"
        # Qpid delivers again what is rejected, until the queue's maximum of attempts, if it has one.
        return "ACCEPTED" if self.kind == QPID and not keeps_rejected else "REJECTED"

    @property
    def _is_old_rabbitmq(self) -> bool:
        return self.kind == RABBITMQ and self.version.partition(".")[0] in ("3", "")


def product_of(properties: Mapping[Any, Any] | None) -> Product:
    """The product that the properties of the broker's open frame name."""
    given = properties or {}
    name, version = str(given.get("product", "")), str(given.get("version", ""))
    return Product(next((kind for kind in _NAMES if name.startswith(kind)), name), version)
