"""Queues of brokers that speak STOMP 1.2, by `stomp://user:password@host:61613/QUEUE`; `stomp+ssl://` with TLS.

ActiveMQ Classic above all, where STOMP is at home; Artemis and RabbitMQ's plugin speak it, too. In come records, which
become messages of bytes with headers of text; out go deliveries, which are acknowledged one by one.

`send` returns when the broker's receipt says that it has stored the messages, `settle` when the receipt of the
acknowledgement came. What a connection held when it was lost is delivered again.
"""

from __future__ import annotations

from penstock.queues.stomp.queue import StompQueue, open_stomp
from penstock.queues.stomp.settings import StompSettings

__all__ = ["StompQueue", "StompSettings", "open_stomp"]
