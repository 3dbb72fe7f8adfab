"""The client side of the benchmarks, in a process of its own: the same librdkafka against every server.

`python -m benchmarks.client WORKLOAD BOOTSTRAP JSON-OPTIONS` prints one JSON object with what it measured.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

QUEUE: Final = {
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_000_000,
}
BATCHED: Final = {"linger.ms": 5, "batch.size": 1_000_000, "batch.num.messages": 100_000}
FAST_CONSUMER: Final = {
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 500_000,
    "fetch.queue.backoff.ms": 1,
    "fetch.message.max.bytes": 4_000_000,
}
_STAMP: Final = struct.Struct(">d")


def check_all_there(producer: Producer, bootstrap: str, topic: str, expected: int) -> None:
    """Everything is acknowledged, and the topic ends where it must.

    No record has a callback of its own: hearing of each would take most of the client's time.
    """
    left = producer.flush(120)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "count"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.close()
    if left or end != expected:
        raise SystemExit(f"{left} records not acknowledged; the topic holds {end} where {expected} were sent")


def produce(bootstrap: str, topic: str, count: int, size: int, acks: str = "all", **settings: Any) -> dict[str, float]:
    """Records as fast as they go: per second, counted when the last is acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks, **QUEUE, **BATCHED, **settings})
    return _produce(producer, bootstrap, topic, count, [(bytes(range(256)) * (size // 256 + 1))[:size]])


def produce_varying(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """The same with records of half to one and a half times the size: the broker looks into each for itself."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **QUEUE, **BATCHED})
    sizes = random.Random(size).choices(range(size // 2, size + size // 2), k=1_000)
    return _produce(
        producer, bootstrap, topic, count, [(bytes(range(256)) * (each // 256 + 1))[:each] for each in sizes]
    )


def _produce(producer: Producer, bootstrap: str, topic: str, count: int, values: list[bytes]) -> dict[str, float]:
    producer.produce(topic, values[0])
    producer.flush(30)
    started = time.perf_counter()
    _send(producer, topic, values, count)
    producer.flush(120)
    seconds = time.perf_counter() - started
    check_all_there(producer, bootstrap, topic, count + 1)
    size = sum(map(len, values)) / len(values)
    return {"records_per_s": count / seconds, "mb_per_s": count * size / seconds / 1e6}


def _send(producer: Producer, topic: str, values: list[bytes], count: int) -> None:
    for number, value in zip(range(count), itertools.cycle(values), strict=False):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1_000 == 0:
            producer.poll(0)


def produce_single(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """One record per request, as many requests in flight as librdkafka likes."""
    settings = {"linger.ms": 0, "batch.num.messages": 1, "batch.size": 1_000}
    return produce(bootstrap, topic, count, size, "all", **settings)


def consume(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    """The first `count` records of partition 0 as fast as they come."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{topic}-reader", "enable.auto.commit": False, **FAST_CONSUMER}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    started = time.perf_counter()
    seen = 0
    while seen < count:
        messages = consumer.consume(100_000, 1.0)
        seen += sum(message.error() is None for message in messages)
        if time.perf_counter() - started > 120:
            raise SystemExit(f"only {seen} of {count} records came")
    seconds = time.perf_counter() - started
    consumer.close()
    return {"records_per_s": seen / seconds}


def latency(bootstrap: str, topic: str, count: int, rate: int) -> dict[str, float]:
    """From `produce` to the consumer's hand, at a steady rate, in milliseconds."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    producer.produce(topic, _STAMP.pack(0.0))
    producer.flush(30)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-reader", "fetch.wait.max.ms": 500})
    consumer.assign([TopicPartition(topic, 0, 1)])
    samples: list[float] = []

    def read() -> None:
        while len(samples) < count:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                samples.append(time.perf_counter() - _STAMP.unpack_from(message.value() or b"")[0])

    reader = threading.Thread(target=read)
    reader.start()
    started = time.perf_counter()
    for number in range(count):
        due = started + number / rate
        while (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        producer.produce(topic, _STAMP.pack(time.perf_counter()) + bytes(92))
        producer.poll(0)
    reader.join(60)
    consumer.close()
    check_all_there(producer, bootstrap, topic, count + 1)
    ordered = sorted(samples[count // 10 :])
    return {
        "p50_ms": ordered[len(ordered) // 2] * 1e3,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1e3,
        "max_ms": ordered[-1] * 1e3,
    }


def first_record(bootstrap: str, topic: str) -> float:
    """Have one record acknowledged as soon as the server lets somebody in; gives that moment, by `time.perf_counter`.

    The port is knocked at directly: librdkafka waits between its attempts for longer than Penstock takes to start.
    """
    host, _, port = bootstrap.rpartition(":")
    deadline = time.perf_counter() + 120
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            break
        except OSError:
            if time.perf_counter() > deadline:
                raise SystemExit("nobody listened within two minutes") from None
            time.sleep(0.005)
    settings = {"topic.metadata.refresh.fast.interval.ms": 20, "retry.backoff.ms": 20, "log_level": 0}
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **settings})
    producer.produce(topic, b"first")
    producer.flush(120)
    moment = time.perf_counter()
    check_all_there(producer, bootstrap, topic, 1)
    return moment


WORKLOADS: Final[dict[str, Callable[..., dict[str, float]]]] = {
    "produce": produce,
    "produce_single": produce_single,
    "produce_varying": produce_varying,
    "consume": consume,
    "latency": latency,
}


def main() -> None:
    workload, bootstrap, options = sys.argv[1:4]
    print(json.dumps(WORKLOADS[workload](bootstrap, **json.loads(options))))


if __name__ == "__main__":
    main()
