"""Cursors: where a page of messages ended, as text that a web page can carry and anybody may tamper with."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from penstock.errors import ConfigError
from penstock.model import Pointer

_LONGEST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a topic, and which way reading goes on from there."""

    topic: str
    way: Literal["newer", "older"]
    pointers: dict[int, Pointer]
    """Of each partition: from here on, or up to before here."""

    def text(self) -> str:
        wire = msgspec.json.encode([self.topic, self.way, {str(p): str(each) for p, each in self.pointers.items()}])
        return base64.urlsafe_b64encode(wire).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str, topic: str) -> Cursor:
        """ConfigError when it is none, or one of another topic."""
        try:
            if len(text) > _LONGEST:
                raise ValueError("it is too long")
            wire = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            its_topic, way, pointers = msgspec.json.decode(
                wire, type=tuple[str, Literal["newer", "older"], dict[str, str]]
            )
            found = {int(partition): int(pointer) for partition, pointer in pointers.items()}
        except (ValueError, binascii.Error, msgspec.MsgspecError, UnicodeEncodeError):
            raise ConfigError("this page cannot be gone on from: begin again from a position") from None
        if its_topic != topic or any(partition < 0 or pointer < 0 for partition, pointer in found.items()):
            raise ConfigError(f"this page is none of topic {topic!r}: begin again from a position")
        return cls(its_topic, way, found)
