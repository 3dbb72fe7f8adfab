"""Closing a librdkafka consumer that is a member of a group, so that it cannot hang."""

from __future__ import annotations

import logging
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

logger = logging.getLogger(__name__)

_PROBE_S: Final = 0.002
_END_S: Final = 10.0
"""librdkafka waits at most 5 s for the answer to its LeaveGroup request."""


class GroupExit:
    """Closes a consumer, and answers the rebalance callbacks that are called while it closes.

    librdkafka 2.16 ends its group handling inside `Consumer.close`, and drops a request that arrives at the moment of
    the end without a reply. `assign`, `unassign` and their incremental forms then wait forever. confluent-kafka holds
    the interpreter lock while they wait, so every thread of the process stops, and no timeout in Python can fire.

    The answer to the callback that `close` itself triggers is safe: librdkafka does not end before it has the answer.
    But `close` also calls a callback that was due before and that no poll has called yet:

    - With a cooperative assignor, it is called first, and librdkafka waits for the first answer only.
    - With an eager assignor, it is the only callback, and librdkafka does not wait for the answer. A due assignment
      is recognised by its kind. A due revocation looks like the one that `close` triggers, and is answered at once.

    An answer that librdkafka does not wait for is given after the end, when librdkafka refuses it immediately. Polling
    before `close` is no remedy: after the answer to a due callback, the member joins the group again, and the broker
    handles its LeaveGroup request only after that JoinGroup request.
    """

    def __init__(self, consumer: Consumer, topic: str, *, is_cooperative: bool) -> None:
        self._consumer = consumer
        self._topic = topic
        self._is_cooperative = is_cooperative
        self._has_answered = False
        self.is_closing = False
        """Whether callbacks must be answered with `answer`."""

    def close(self) -> None:
        self.is_closing = True
        self._consumer.close()

    def answer(self, *, is_assignment: bool) -> None:
        """Answer a callback that `Consumer.close` calls: nothing is assigned. librdkafka expects no other answer."""
        if self._has_answered or (is_assignment and not self._is_cooperative):
            self._wait_for_end()
        self._has_answered = True
        try:
            self._consumer.unassign()
        except KafkaException as error:
            logger.debug("topic %r: the group was left already: %s", self._topic, error)

    def _wait_for_end(self) -> None:
        """Wait until librdkafka refuses group requests. Fetching offsets shows it, and is the one with a timeout."""
        deadline_s = time.monotonic() + _END_S
        while time.monotonic() < deadline_s:
            began_s = time.monotonic()
            try:
                self._consumer.committed([TopicPartition(self._topic, 0)], timeout=_PROBE_S)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._DESTROY:
                    return
            time.sleep(max(0.0, began_s + _PROBE_S - time.monotonic()))
        logger.warning("topic %r: the group was not left within %g s", self._topic, _END_S)
