"""What is kept in the checkpoint of a query."""

from __future__ import annotations

import json

import pytest

from penstock.errors import CheckpointMismatchError
from penstock.spark.source.positions import Pointers
from penstock.spark.source.stream_reader import SourceOffset
from tests.spark.source.reading import stream_reader

ONE = SourceOffset({("orders", 10): 5, ("orders", 2): 7}, {"orders": "id"}, {("orders", 2): 1})
SEVERAL = SourceOffset(
    {("orders", 0): 5, ("returns", 0): 1 << 130}, {"orders": "id", "returns": "other"}, {("returns", 0): 0}
)


@pytest.mark.parametrize("progress", [ONE, SEVERAL, SourceOffset({})], ids=["one", "several", "none"])
def test_progress_comes_back_from_its_text(progress: SourceOffset) -> None:
    assert SourceOffset.from_json(json.loads(json.dumps(progress.to_json()))) == progress


def test_the_progress_of_one_topic_is_written_as_it_always_was() -> None:
    old = '{"orders": {"2": 7, "10": 5}, "@id": "id", "@from": {"2": 1}}'
    assert json.dumps(ONE.to_json()) == old
    assert SourceOffset.from_json(json.loads(old)) == ONE


def test_the_text_is_the_same_whatever_the_order_was() -> None:
    orders: list[Pointers] = [{("x", 1): 2, ("x", 0): 4}, {("x", 0): 4, ("x", 1): 2}]
    assert len({json.dumps(SourceOffset(pointers).to_json()) for pointers in orders}) == 1


def test_a_checkpoint_of_another_topic_is_refused() -> None:
    reader = stream_reader("log:./nowhere", "orders")
    with pytest.raises(CheckpointMismatchError, match="belongs to 'payments', not to topic 'orders'"):
        reader._stored(SourceOffset({("payments", 0): 1}, {"payments": "id"}).to_json())
