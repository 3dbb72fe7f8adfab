"""What Penstock's consumer is compared with: a bare loop of confluent-kafka, and FastStream on the same client.

`python -m benchmarks.consumers_peers WHO BOOTSTRAP TOPIC JSON-OPTIONS` is one measurement, and prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Final

from confluent_kafka import Consumer

from benchmarks.stopwatch import Stopwatch

READ_AHEAD: Final = {
    "queued.min.messages": 500_000,
    "queued.max.messages.kbytes": 131_072,
    "fetch.queue.backoff.ms": 5,
}
"""For all peers: what librdkafka fetches ahead of them."""
AT_ONCE: Final = 10_000


def bare(bootstrap: str, topic: str, count: int, group: str, **_: Any) -> float:
    """`consume()` in a loop, every value looked at; librdkafka commits by itself every 5 s."""
    watch = Stopwatch(count)
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", **READ_AHEAD}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    seen = 0
    while seen < count:
        messages = consumer.consume(min(AT_ONCE, (watch.warm if seen < watch.warm else count) - seen), 1.0)
        for message in messages:
            if message.error() is None:
                message.value()
                seen += 1
        if seen in (watch.warm, count) and messages:
            watch.mark(seen)
    consumer.close()
    return watch.rate


def faststream(bootstrap: str, topic: str, count: int, group: str, how: str = "auto commit", **_: Any) -> float:
    """A subscriber that does nothing, without validation and decoding, which it can be told to leave out.

    "auto commit" is its default and its fastest: librdkafka commits every 5 s what was polled, handled or not. "ack"
    commits after each record, which is how it is at least once. "batch" has the handler take lists.
    """
    from faststream import AckPolicy
    from faststream.confluent import KafkaBroker

    ended = asyncio.Event()
    watch = Stopwatch(count, ended.set)
    settings: Any = dict(READ_AHEAD)
    broker = KafkaBroker(bootstrap, apply_types=False, logger=None, config=settings)
    policy: dict[str, Any] = {"ack_policy": AckPolicy.NACK_ON_ERROR} if how == "ack" else {}
    if how == "batch":
        policy |= {"batch": True, "max_records": AT_ONCE}

    async def as_it_is(message: Any) -> Any:
        return message.body

    subscriber: Any = broker.subscriber(topic, group_id=group, auto_offset_reset="earliest", decoder=as_it_is, **policy)

    async def handle(value: Any) -> None:
        watch.tick(value)

    async def handle_all(values: Any) -> None:
        watch.add(len(values))

    subscriber(handle_all if how == "batch" else handle)

    async def run() -> None:
        async with broker:
            await broker.start()
            await ended.wait()

    asyncio.run(run())
    return watch.rate


if __name__ == "__main__":
    peers = {"bare": bare, "faststream": faststream}
    print(json.dumps({"records_per_s": peers[sys.argv[1]](sys.argv[2], sys.argv[3], **json.loads(sys.argv[4]))}))
