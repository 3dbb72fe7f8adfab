"""A sequence of changes, the same for the same seed, and what a store must hold after each of them."""

from __future__ import annotations

import random

from penstock.abc import CheckpointStore
from penstock.model import Change, Checkpoint, CheckpointKey, Handled, HistoryEntry, Status

NAMES = 12
"""How many keys of state there are: few, so that they change and go again and again."""


def nth_change(seed: int, number: int) -> Change:
    """The change that is saved as number 1, 2, 3 ...; every part of it says which number it is."""
    rng = random.Random(f"{seed}-{number}")
    names = rng.sample(range(NAMES), 3)
    state = {b"name-%d" % name: None if rng.random() < 0.3 else b"%d %d" % (number, name) for name in names}
    first = number * 10
    lines = tuple(
        HistoryEntry(first + each, first + each + 1, Status.SUCCEEDED, 1, "", number, number, "writer", "handler")
        for each in range(rng.randrange(1, 4))
    )
    finished = tuple((first + 2 * each, first + 2 * each + 1) for each in range(1, rng.randrange(1, 40)))
    checkpoint = Checkpoint(first, first + 100, finished, processed=number)
    return Change(checkpoint, lines, state, (Handled(f"id-{number}", number),))


def assert_holds(store: CheckpointStore, key: CheckpointKey, seed: int, number: int) -> None:
    """Everything in the store is as it was after change `number`: nothing of a later one, nothing of it missing."""
    changes = [nth_change(seed, each) for each in range(1, number + 1)]
    assert store.load(key) == (changes[-1].checkpoint if changes else None)
    merged: dict[bytes, bytes | None] = {}
    for change in changes:
        merged |= change.state
    assert store.state(key) == {name: value for name, value in merged.items() if value is not None}
    assert list(store.history(key, limit=10**6)) == [line for change in changes for line in change.history]
    asked = {f"id-{each}" for each in range(number + 3)}
    assert store.handled(key.group, key.topic, asked) == {f"id-{each}" for each in range(1, number + 1)}


def number_in(store: CheckpointStore, key: CheckpointKey) -> int:
    """Which change was saved last; 0 when none was."""
    checkpoint = store.load(key)
    return 0 if checkpoint is None else checkpoint.processed
