"""A record that is over the limit of a queue's broker."""

from __future__ import annotations

from typing import Final

import pytest

from penstock.abc import Outcome, Queue
from penstock.errors import BrokerUnavailableError, RecordTooLargeError, StreamError
from penstock.model import NewRecord
from tests.consuming.eventually import wait_until

WAIT_S: Final = 30.0


def check_refused(queue: Queue, record: NewRecord, says: str) -> None:
    """The record is refused, with this in the error. Then the queue takes another one, and delivers it."""
    with pytest.raises(
        RecordTooLargeError, match=rf"a message for {queue.name} is larger than .*: .*{says}"
    ) as refused:
        queue.send([record])
    assert len(str(refused.value)) < 1_500, "the error repeats the record"

    def is_sent() -> bool:
        try:
            queue.send([NewRecord("queue", b"fits")])
        except (BrokerUnavailableError, StreamError):
            return False
        return True

    wait_until(is_sent, WAIT_S)  # the broker closes the connection over a message that is too large
    [delivery] = queue.receive(1, WAIT_S)
    assert delivery.record.value == b"fits"
    queue.settle(delivery, Outcome.DONE)
