"""Queues of AMQP 1.0 brokers: `amqp1://user:password@host:5672/QUEUE`, and `amqps1://` for TLS.

Artemis, ActiveMQ, Qpid, RabbitMQ, Azure Service Bus, IBM MQ and others speak it. A broker says which product it is when
it is connected to; `products` knows in what they differ.

**Records.** The value is the message's data section, the message id is unique for each record, the timestamp is the
creation time, headers are application properties. What AMQP has no place for stands in properties of ours: the key in
`penstock-key`, a null value in `penstock-null`. In messages of other programs, types that are not text or bytes are
given as JSON.

**Guarantees.** `send` returns when the broker has accepted every message. `settle` returns when a broker that confirms
settlements (Qpid) has done so, else when it is on the network. A delivery whose connection is lost is delivered again.
"""

from penstock.queues.amqp1.queue import FEATURES, Amqp1Delivery, Amqp1Queue, open_amqp1
from penstock.queues.amqp1.settings import Amqp1Settings

__all__ = ["FEATURES", "Amqp1Delivery", "Amqp1Queue", "Amqp1Settings", "open_amqp1"]
