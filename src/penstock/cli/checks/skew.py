"""How far the broker's clock is from ours: Kafka's protocol only tells it with a record that it has stamped."""

from __future__ import annotations

import secrets
import time

from penstock.errors import BrokerUnavailableError, StreamError


def clock_skew_s(url: str, timeout_s: float) -> tuple[float, float]:
    """By how much the broker's clock is ahead of ours, and within what. A topic is made for it, and deleted again."""
    from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message, Producer

    from penstock.streams import connect

    topic = f"penstock-doctor-{secrets.token_hex(6)}"
    heard: list[Message] = []
    with connect(url, client_id="penstock-doctor", connect_timeout_s=timeout_s) as stream:
        stream.create_topic(topic, partitions=1, config={"message.timestamp.type": "LogAppendTime"})
        try:
            own = {"bootstrap.servers": stream.bootstrap, "log_level": 0, "acks": "all"}
            producer = Producer({**stream.options.librdkafka, **own})
            # The first record waits for connections to be made; the second measures.
            for _ in range(2):
                heard.clear()
                before_s = time.time()
                producer.produce(topic, b"?", on_delivery=lambda _error, message: heard.append(message))
                if producer.flush(timeout_s) or not heard:
                    raise BrokerUnavailableError(f"{stream.url} did not acknowledge a record within {timeout_s:g} s")
                after_s = time.time()
        finally:
            stream.administration.delete(topic)
    message = heard[0]
    if message.error() is not None:
        raise StreamError(f"{stream.url} refused a record: {message.error()}")
    kind, stamp_ms = message.timestamp()
    if kind != TIMESTAMP_LOG_APPEND_TIME:
        raise StreamError(f"{stream.url} does not stamp records with its own time")
    return stamp_ms / 1000 - (before_s + after_s) / 2, (after_s - before_s) / 2 + 0.001
