"""Wait until the topics of a handler exist."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

from penstock.abc import Stream, TopicStream
from penstock.consuming.handlers import Handler
from penstock.errors import BrokerUnavailableError, StreamError, UnknownTopicError
from penstock.model.retry import Retry
from penstock.streams.declared import provide_topic, tell_difference

logger = logging.getLogger(__name__)

_AGAIN: Final = Retry(first_delay_s=0.1, max_delay_s=10.0)
_LONGEST_WAIT_S: Final = 2.0
"""The longest pause between two checks."""


def wait_for_topic(
    stream: Stream, topic_stream: TopicStream, handler: Handler, stopping: Callable[[float], bool], *, ends: bool
) -> bool:
    """Return True once the handler's topic exists, False if `stopping`, which waits, says to stop first.

    A declared Topic is created; a topic given by name is waited for, and so is the broker. The topic of the handler's
    results is also created if it declares its number of partitions. A run that `ends` by itself does not wait:
    UnknownTopicError.
    """
    topic, to = handler.topic, handler.to
    may_create = handler.is_topic_declared and topic_stream.topic == topic.name
    chance, attempts = random.Random(), 0
    while True:
        try:
            if may_create:
                tell_difference(topic.name, topic.partitions, provide_topic(stream, topic.name, topic.partitions))
            else:
                topic_stream.partitions()
            if to is not None and to.partitions is not None:
                tell_difference(to.name, to.partitions, provide_topic(stream, to.name, to.partitions))
        except (UnknownTopicError, BrokerUnavailableError, StreamError) as error:
            if ends and not isinstance(error, BrokerUnavailableError):
                raise
            may_create = may_create and isinstance(error, BrokerUnavailableError)
            attempts += 1
            if attempts == 1:
                logger.warning("%s: waiting for topic %r: %s", handler.name, topic_stream.topic, error)
            if stopping(min(_LONGEST_WAIT_S, _AGAIN.backoff_s(attempts, chance))):
                return False
        else:
            if attempts:
                logger.info("%s: topic %r exists now", handler.name, topic_stream.topic)
            return True
