"""What is kept in the checkpoint of a query."""

from __future__ import annotations

import json

import pytest

from penstock.errors import CheckpointMismatchError
from penstock.spark.source.progress import Progress


def test_progress_comes_back_from_its_text() -> None:
    progress = Progress("orders", {10: 5, 2: 7}, "id", {2: 1})
    text = json.dumps(progress.to_json())
    assert Progress.from_json("orders", json.loads(text)) == progress
    assert list(json.loads(text)["orders"]) == ["2", "10"]


def test_the_text_is_the_same_whatever_the_order_was() -> None:
    texts = {json.dumps(Progress("x", pointers).to_json()) for pointers in ({1: 2, 0: 4}, {0: 4, 1: 2})}
    assert len(texts) == 1


def test_a_checkpoint_of_another_topic_is_refused() -> None:
    with pytest.raises(CheckpointMismatchError, match="about 'payments', and not about topic 'orders'"):
        Progress.from_json("orders", Progress("payments", {0: 1}, "id").to_json())
