"""RabbitMQ queues by AMQP 0-9-1: `amqp://user:password@host:5672/VHOST/QUEUE`, and `amqps://` for TLS.

With one part in the path, it is the queue, in the virtual host "/". A queue that does not exist is declared, durable,
with a second queue for its dead letters; one that exists is used as it is.

**Records.** The body is the value, the message id is unique for each record, headers are headers (a name that occurs
more than once holds a list). What AMQP has no place for stands in headers of ours: the key in `penstock-key`, the
timestamp in `penstock-timestamp`, a null value in `penstock-null`. In messages of other programs, headers that are not
text or bytes are given as JSON.

**Guarantees.** `send` returns when the broker has confirmed every message: a quorum queue has then stored it on a
majority of its nodes. `settle` returns when the broker has processed it. A delivery whose connection is lost is
delivered again.

pika's connection lives in one thread, which reconnects by itself; the methods of the queue pass it work and wait.
"""

from penstock.queues.amqp.link import AmqpDelivery
from penstock.queues.amqp.queue import FEATURES, AmqpQueue, open_amqp
from penstock.queues.amqp.settings import AmqpSettings

__all__ = ["FEATURES", "AmqpDelivery", "AmqpQueue", "AmqpSettings", "open_amqp"]
