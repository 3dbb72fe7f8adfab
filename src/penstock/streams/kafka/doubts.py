"""Doubts about a silent topic: is nothing sent to it, or is it not there any more?"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaException

from penstock.streams.kafka.failures import is_missing, refused
from penstock.streams.kafka.topics import TopicAdministration

SILENCE_S: Final = 10.0
"""After so long without a message the broker is asked whether the topic is there."""


class Doubts:
    """librdkafka waits for ever for a topic that was deleted, and says nothing. So a reader asks, without waiting."""

    def __init__(self, topic: str, topics: TopicAdministration) -> None:
        self._topic = topic
        self._topics = topics
        self._since_s = time.monotonic()
        self._answer: Future[Any] | None = None

    def dispel(self) -> None:
        """Something has come."""
        self._since_s = 0.0

    def consider(self) -> None:
        """Nothing has come again. UnknownTopicError when the topic is known to be gone."""
        now_s = time.monotonic()
        if not self._since_s:
            self._since_s = now_s
        if self._answer is None:
            if now_s - self._since_s >= SILENCE_S:
                self._answer = self._topics.ask_for(self._topic)
        elif self._answer.done():
            answer, self._answer = self._answer, None
            self._since_s = now_s
            error = answer.exception()
            if isinstance(error, KafkaException) and is_missing(error):
                raise refused(f"topic {self._topic!r} cannot be read any more", error) from error
