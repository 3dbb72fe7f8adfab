"""A receipt is settled once, by the stream, and tells whoever asks."""

from __future__ import annotations

import threading

import pytest

import penstock
from penstock import Receipt, RecordMetadata


def test_a_receipt_tells_where_the_record_stands() -> None:
    receipt = Receipt("orders")
    assert not receipt.done
    receipt.settle(3, 42)
    assert receipt.done
    assert receipt.result() == RecordMetadata("orders", 3, 42)
    assert receipt.result().pointer == "42"
    assert str(receipt.result()) == "orders-3 at offset 42"


def test_a_failed_receipt_raises_as_often_as_it_is_asked() -> None:
    receipt = Receipt("orders")
    receipt.settle(-1, -1, penstock.DeliveryError("too large"))
    assert not receipt.seen
    for _ in range(2):
        with pytest.raises(penstock.DeliveryError, match="too large"):
            receipt.result()
    assert receipt.seen


def test_a_receipt_that_is_not_settled_in_time_says_that_the_record_is_still_under_way() -> None:
    with pytest.raises(TimeoutError, match=r"not acknowledged within 0\.01 s; it is still being delivered"):
        Receipt("orders").result(timeout=0.01)


def test_several_threads_may_wait_for_one_receipt() -> None:
    receipt = Receipt("orders")
    places: list[RecordMetadata] = []
    waiting = [threading.Thread(target=lambda: places.append(receipt.result(10))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    receipt.settle(0, 7)
    for thread in waiting:
        thread.join(10)
    assert places == [RecordMetadata("orders", 0, 7)] * 3


def test_callbacks_are_called_once_before_and_after_the_answer() -> None:
    receipt = Receipt("orders")
    called: list[str] = []
    receipt.add_done_callback(lambda each: called.append(f"waited for {each.result()}"))
    assert not called
    receipt.settle(0, 1)
    receipt.add_done_callback(lambda _: called.append("came late"))
    assert called == ["waited for orders-0 at offset 1", "came late"]


def test_a_callback_that_fails_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    receipt = Receipt("orders")
    called: list[Receipt] = []

    def fails(_: Receipt) -> None:
        raise ValueError("a mistake of the user")

    receipt.add_done_callback(fails)
    receipt.add_done_callback(called.append)
    receipt.settle(0, 1)
    assert called == [receipt]
    assert "a mistake of the user" in caplog.text


def test_settling_twice_is_a_mistake_of_ours() -> None:
    receipt = Receipt("orders")
    receipt.settle(0, 1)
    with pytest.raises(AssertionError, match="settled twice"):
        receipt.settle(0, 2)


@pytest.mark.parametrize(
    ("error", "shown"),
    [(None, "<Receipt: orders-0 at offset 1>"), (penstock.DeliveryError("no"), "<Receipt for 'orders': no>")],
)
def test_a_receipt_shows_its_state(error: penstock.DeliveryError | None, shown: str) -> None:
    receipt = Receipt("orders")
    assert repr(receipt) == "<Receipt for 'orders': on its way>"
    receipt.settle(0, 1, error)
    assert repr(receipt) == shown
