"""The headers of a redriven record: which group it is for, and its idempotency key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.model import Headers, Record
from penstock.model.letter import letter_id

REDRIVE_ID_HEADER: Final = "penstock-redrive-id"
"""`<letter id>.<n>` for the n-th redrive of a letter. It stays the same when that redrive is restarted, so it serves as
an idempotency key."""

REDRIVE_GROUP_HEADER: Final = "penstock-redrive-group"
"""The group that gave the record up. Other groups handled it long ago and ignore it."""

_ID: Final = re.compile(rb"(?P<letter>\S+)\.(?P<number>[1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Redrive:
    """A record's redrive headers."""

    id: str
    """The idempotency key of this redrive."""
    letter_id: str
    number: int
    """1 for the first redrive of the letter."""
    group: str | None
    """The group that handles it; None if it was sent to another topic than its own: any group there."""

    def is_for(self, group: str) -> bool:
        """Whether this group must handle it rather than ignore it."""
        return self.group is None or self.group == group


def redrive_of(record: Record) -> Redrive | None:
    """The redrive headers of a record; None for a record that its producer sent.

    Malformed headers are ignored. If a name occurs twice, the last one counts, because it was added last.
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
    """The id of the letter for a record that `group` gives up: that of its earlier letter if it was redriven."""
    redrive = redrive_of(record)
    if redrive is not None and redrive.group == group:
        return redrive.letter_id
    return letter_id(group, record.topic, record.partition, record.offset)


def redrive_headers(original: Headers, letter: str, number: int, group: str | None) -> Headers:
    """A record's headers with those of this redrive, which replace those of an earlier one."""
    kept = tuple(pair for pair in original if pair[0] not in (REDRIVE_ID_HEADER, REDRIVE_GROUP_HEADER))
    mark: Headers = ((REDRIVE_ID_HEADER, f"{letter}.{number}".encode()),)
    return (*kept, *mark) if group is None else (*kept, *mark, (REDRIVE_GROUP_HEADER, group.encode()))
