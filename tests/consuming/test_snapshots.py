"""State that a handler keeps itself: got and restored together with the pointers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.app import App
from penstock.consuming import Retry
from penstock.errors import ConfigError, GuaranteeError

Fill = Callable[..., None]
Consume = Callable[..., App]


class Usage:
    """The system usage counter of the worked cases: it counts transactions by the system that they came from."""

    def __init__(self) -> None:
        self.counts: dict[int, Counter[str]] = {}

    def __call__(self, value: bytes) -> None:
        self.counts[0][str(int(value) % 3)] += 1

    def get(self, partition: int) -> dict[str, int]:
        return dict(self.counts[partition])

    def restore(self, partition: int, state: dict[str, int] | None) -> None:
        self.counts[partition] = Counter(state or {})


def test_a_restarted_instance_goes_on_with_the_counts_it_had(fill: Fill, consume: Consume) -> None:
    fill("usage", 30)
    first = Usage()
    consume(first, topic="usage", snapshot=first.get, restore=first.restore)
    fill("usage", 30)
    second = Usage()
    consume(second, topic="usage", snapshot=second.get, restore=second.restore)
    assert second.counts == {0: Counter({"0": 20, "1": 20, "2": 20})}


def test_what_was_counted_and_not_saved_is_counted_again_from_the_saved_state(fill: Fill, consume: Consume) -> None:
    fill("usage", 20)
    broken = Usage()

    def stops_at_13(value: bytes) -> None:
        if value == b"13":
            raise ValueError("down")
        broken(value)

    with pytest.raises(Exception, match="no dead letters"):
        consume(
            stops_at_13,
            topic="usage",
            snapshot=broken.get,
            restore=broken.restore,
            retry=Retry(1),
            dead_letters=False,
            chunk=4,
        )
    mended = Usage()
    consume(mended, topic="usage", snapshot=mended.get, restore=mended.restore)
    assert mended.counts[0].total() == 20


def no_snapshot(partition: int) -> Any:
    raise RuntimeError("no snapshot today")


def test_a_snapshot_that_fails_fails_its_records_and_none_is_lost(fill: Fill, consume: Consume) -> None:
    fill("usage", 3)
    usage = Usage()
    with pytest.raises(Exception, match="no snapshot today"):
        consume(
            usage,
            topic="usage",
            snapshot=no_snapshot,
            restore=usage.restore,
            retry=Retry(1),
            dead_letters=False,
        )


def test_snapshots_that_could_not_be_exact_are_refused(fill: Fill, consume: Consume) -> None:
    fill("usage", 1)
    usage = Usage()
    both: dict[str, Any] = {"snapshot": usage.get, "restore": usage.restore}
    with pytest.raises(GuaranteeError, match="order='partition'"):
        consume(usage, topic="usage", order="key", **both)
    with pytest.raises(ConfigError, match="go together"):
        consume(usage, topic="usage", snapshot=usage.get)
