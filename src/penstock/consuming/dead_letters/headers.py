"""The headers of a redriven record: by them a consumer knows whom it is meant for, and that it has seen it before."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.model import Headers, Record
from penstock.model.letter import letter_id

REDRIVE_ID_HEADER: Final = "penstock-redrive-id"
"""`<letter id>.<n>` for the n-th redrive of a letter. The same however often that redrive had to be begun again, so it
serves as an idempotency key."""

REDRIVE_GROUP_HEADER: Final = "penstock-redrive-group"
"""The group that gave the record up. Others have handled it long ago, and ignore it."""

_ID: Final = re.compile(rb"(?P<letter>\S+)\.(?P<number>[1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Redrive:
    """What a record says about having been sent again."""

    id: str
    """The idempotency key of this redrive."""
    letter_id: str
    number: int
    """1 for the first redrive of the letter."""
    group: str | None
    """Who is to handle it; None where it was sent to another topic than its own: whoever reads that."""

    def is_for(self, group: str) -> bool:
        """Whether this group is to handle it, rather than ignore it."""
        return self.group is None or self.group == group


def redrive_of(record: Record) -> Redrive | None:
    """What the record's headers say about a redrive; None for a record that was sent by its producer.

    A header that is not of our making is no redrive. Where a name stands twice, the last one counts, as it is the one
    that was added last.
    """
    identity: bytes | None = None
    group: bytes | None = None
    for name, content in record.headers:
        if name == REDRIVE_ID_HEADER:
            identity = content
        elif name == REDRIVE_GROUP_HEADER:
            group = content
    match = _ID.fullmatch(identity) if identity is not None else None
    if match is None:
        return None
    try:
        return Redrive(
            match[0].decode(), match["letter"].decode(), int(match["number"]), group.decode() if group else None
        )
    except UnicodeDecodeError:
        return None


def letter_id_of(group: str, record: Record) -> str:
    """The id of the letter to put when `group` gives this record up: that of the letter it came from, if it did."""
    redrive = redrive_of(record)
    if redrive is not None and redrive.group == group:
        return redrive.letter_id
    return letter_id(group, record.topic, record.partition, record.offset)


def redrive_headers(original: Headers, letter: str, number: int, group: str | None) -> Headers:
    """A record's headers with those of this redrive in place of those of an earlier one."""
    kept = tuple(pair for pair in original if pair[0] not in (REDRIVE_ID_HEADER, REDRIVE_GROUP_HEADER))
    mark: Headers = ((REDRIVE_ID_HEADER, f"{letter}.{number}".encode()),)
    return (*kept, *mark) if group is None else (*kept, *mark, (REDRIVE_GROUP_HEADER, group.encode()))
