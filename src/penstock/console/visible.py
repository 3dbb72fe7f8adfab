"""Making text safe to read: invisible characters, and those that change the direction of text, are made visible.

This protects people from being fooled. It does not escape HTML: that is up to the page.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except tab and newline
    "\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # direction, zero width
    "\ud800-\udfff\U000e0000-\U000e007f]"  # surrogates, and invisible tags
)
_CONTROL_PICTURES: Final = 0x2400
_DELETE: Final = 0x7F


def visible(text: str) -> str:
    """The text with hidden characters shown: ␀ for a control character, ⟨U+202E⟩ for others."""
    return _HIDDEN.sub(_mark, text) if _HIDDEN.search(text) else text


def is_hiding(text: str) -> bool:
    return _HIDDEN.search(text) is not None


def hidden_share(text: str) -> float:
    """The share of hidden characters, from 0 to 1."""
    return sum(1 for _ in _HIDDEN.finditer(text)) / len(text) if text else 0.0


def utf8_beginning(data: bytes, most_bytes: int) -> str | None:
    """The text at the beginning of these bytes, without a character that is cut in two. None: not UTF-8."""
    is_cut = len(data) > most_bytes
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data[:most_bytes] if is_cut else data, final=not is_cut)
    except UnicodeDecodeError:
        return None


def _mark(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    if code == _DELETE:
        return "\u2421"
    return f"⟨U+{code:04X}⟩"
