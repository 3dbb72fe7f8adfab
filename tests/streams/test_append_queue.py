"""The queue of records under way that backends without batching of their own use."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import pytest

import penstock
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    DeliveryError,
    MissingExtraError,
    StreamError,
)
from penstock.model import NewRecord
from penstock.streams.adapting.append_queue import Appended, AppendQueue, Attempt, QueueLimits


class Storage:
    """Stores batches in memory, once it is told to go on."""

    def __init__(self, *failures: Exception) -> None:
        self.batches: list[list[bytes | None]] = []
        self.attempts = 0
        self.go_on = threading.Event()
        self.began = threading.Event()
        self._failures = list(failures)

    def plan(self, batch: Sequence[Appended]) -> Attempt:
        def attempt() -> None:
            self.began.set()
            assert self.go_on.wait(20)
            self.attempts += 1
            if self._failures:
                raise self._failures.pop(0)
            self.batches.append([appended.record.value for appended in batch])
            for number, appended in enumerate(batch):
                appended.receipt.settle(0, number)

        return attempt


def records(count: int, first: int = 0) -> list[NewRecord]:
    return [NewRecord("orders", b"%d" % number) for number in range(first, first + count)]


def test_what_is_appended_while_a_batch_is_stored_is_the_next_batch() -> None:
    storage = Storage()
    queue = AppendQueue("orders", storage.plan, timeout_s=20, limits=QueueLimits(batch_records=3))
    receipts = queue.put(records(1))
    assert storage.began.wait(20)
    for number in range(1, 6):
        receipts += queue.put(records(1, number))
    storage.go_on.set()
    queue.close()
    assert storage.batches == [[b"0"], [b"1", b"2", b"3"], [b"4", b"5"]]
    assert all(receipt.done for receipt in receipts)


def test_a_batch_is_tried_again_before_the_next_one() -> None:
    storage = Storage(BrokerUnavailableError("away"), BrokerUnavailableError("still away"))
    storage.go_on.set()
    queue = AppendQueue("orders", storage.plan, timeout_s=20)
    [first] = queue.put(records(1))
    assert first.result(20).offset == 0
    assert storage.attempts == 3
    queue.close()


@pytest.mark.parametrize(
    ("failure", "retriable"),
    [
        (BrokerUnavailableError("wrong password", retriable=False), False),
        (StreamError("refused"), False),
        (ZeroDivisionError("a defect"), False),
    ],
)
def test_an_error_that_does_not_pass_fails_the_batch_and_not_the_next(failure: Exception, retriable: bool) -> None:
    storage = Storage(failure)
    storage.go_on.set()
    queue = AppendQueue("orders", storage.plan, timeout_s=20)
    [bad] = queue.put(records(1))
    with pytest.raises(DeliveryError, match=str(failure)) as caught:
        bad.result(20)
    assert caught.value.retriable is retriable
    [good] = queue.put(records(1, 1))
    assert good.result(20).offset == 0
    queue.close()


def test_a_batch_fails_when_its_time_is_over() -> None:
    storage = Storage(*(BrokerUnavailableError("away") for _ in range(1000)))
    storage.go_on.set()
    queue = AppendQueue("orders", storage.plan, timeout_s=0.1)
    [receipt] = queue.put(records(1))
    with pytest.raises(DeliveryError, match="away") as caught:
        receipt.result(20)
    assert caught.value.retriable
    queue.close()


@pytest.mark.parametrize("limits", [QueueLimits(records=2), QueueLimits(size_bytes=100)])
def test_there_is_no_room_for_more_than_the_limit(limits: QueueLimits) -> None:
    storage = Storage()
    queue = AppendQueue("orders", storage.plan, timeout_s=0.05, limits=limits)
    queue.put(records(1))
    assert storage.began.wait(20)
    *_, refused = queue.put(records(3, 1))
    with pytest.raises(DeliveryError, match=r"there was no room for more within 0\.05 s"):
        refused.result(0)
    storage.go_on.set()
    queue.close()
    assert storage.batches == [[b"0"], [b"1", b"2"]]


def test_a_closed_queue_and_a_record_of_another_topic_are_refused() -> None:
    queue = AppendQueue("orders", Storage().plan, timeout_s=1)
    with pytest.raises(ConfigError, match="'clicks' was appended to topic 'orders'"):
        queue.put([NewRecord("clicks", b"")])
    queue.close()
    with pytest.raises(ConnectionClosedError, match="open it again"):
        queue.put(records(1))


@pytest.mark.parametrize("scheme", ["redis", "nats"])
def test_a_missing_client_package_names_the_extra(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, scheme, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'penstock\[{scheme}\]'"):
        penstock.connect(f"{scheme}://127.0.0.1:1")
