"""Use the embedded log with a plain Kafka client: the connection has the address of the broker.

python examples/plain_kafka_client.py [FOLDER]
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, Producer

import penstock as ps


def main(folder: str) -> None:
    with ps.connect(f"log:{folder}") as stream:  # the broker runs while this is open
        producer = Producer({"bootstrap.servers": stream.bootstrap})
        for word in ("any", "client", "will", "do"):
            producer.produce("words", word)
        producer.flush(30)

        consumer = Consumer(
            {"bootstrap.servers": stream.bootstrap, "group.id": "example", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["words"])
        words: list[str] = []
        while len(words) < 4:
            message = consumer.poll(10)
            if message is not None and message.error() is None:
                words.append((message.value() or b"").decode())
        consumer.commit(asynchronous=False)
        consumer.close()
        print(" ".join(words))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
