"""Making a new producer known to its broker soon: else its first records are half a second late.

An idempotent producer has to be given a number by a broker before it may send. librdkafka (2.16) asks for that as soon
as it has heard which brokers there are. It heard of them on a connection that it then gives up, and has none to the
brokers themselves yet: so nobody can be asked, and it tries again after half a second, or when it hears of the brokers
once more. Here it is made to.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from confluent_kafka import KafkaException, Producer

_TIMEOUT_S: Final = 0.5
"""How long a broker may take to answer. One that takes longer gains nothing by this."""


class Introduction:
    """Of one producer. It takes a thread of its own, for a moment, so that nobody waits for it."""

    def __init__(self, producer: Producer, topic: str) -> None:
        """`topic` is one that the producer sends to: others need not be asked about."""
        self._thread = threading.Thread(
            target=_introduce, args=(producer, topic), name="penstock-introduction", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Wait until it has let go of the producer."""
        self._thread.join()


def _introduce(producer: Producer, topic: str) -> None:
    with contextlib.suppress(KafkaException):  # a broker that does not answer is told of by what is sent
        for _ in range(2):  # over the first connection, and over the one that stays
            producer.list_topics(topic, timeout=_TIMEOUT_S)
