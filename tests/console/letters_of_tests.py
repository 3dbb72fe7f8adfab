"""Dead letters for tests of the console."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from penstock.dead_letters import open_dead_letters
from penstock.model import DeadLetter, Record
from penstock.model.letter import letter_id

GROUP = "billing"


def letter(topic: str, number: int, kind: str = "ValueError", **value: Any) -> DeadLetter:
    """The letter of record `number`, which says so in its value."""
    record = Record(
        topic,
        0,
        number,
        f"k{number}".encode(),
        msgspec.json.encode({"n": number, **value}),
        (("h", b"x"),),
        1_000 + number,
    )
    return DeadLetter(
        id=letter_id(GROUP, topic, 0, number),
        group=GROUP,
        record=record,
        error=f"{kind}: bad {number}",
        error_kind=kind,
        traceback="Traceback ...",
        attempts=3,
        first_ms=5_000,
        last_ms=6_000 + number,
        handler="bill",
        handler_version="1",
    )


def put_letters(spec: str, topic: str, count: int) -> list[DeadLetter]:
    """So many letters in a place that is no topic; every third is a KeyError."""
    letters = [letter(topic, number, "ValueError" if number % 3 else "KeyError") for number in range(count)]
    with contextlib.closing(open_dead_letters(spec)) as place:
        place.put(letters)
    return letters
