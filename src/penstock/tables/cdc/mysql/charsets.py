"""The character sets of MySQL as Python's."""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable, Mapping
from typing import Final

from penstock.errors import UnsupportedTypeError
from penstock.tables.cdc.records import text_json

Decode = Callable[[bytes], str]

_ENCODINGS: Final = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ascii": "ascii", "binary": "utf-8",
    "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be",
    "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13", "greek": "iso8859-7", "hebrew": "iso8859-8",
    "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "cp932": "cp932", "cp1250": "cp1250", "cp1251": "cp1251",
    "cp1256": "cp1256", "cp1257": "cp1257", "koi8r": "koi8-r", "koi8u": "koi8-u", "macroman": "mac-roman",
    "macce": "mac-latin2", "big5": "big5", "gb2312": "gb2312", "gbk": "gbk", "gb18030": "gb18030",
    "sjis": "shift-jis", "ujis": "euc-jp", "eucjpms": "euc-jp", "euckr": "euc-kr", "tis620": "tis-620",
}  # fmt: skip
_LATIN1: Final = "".join(bytes([each]).decode("cp1252", errors="ignore") or chr(each) for each in range(256))
"""MySQL's latin1 is cp1252, with the five bytes that have no character there as control characters."""


class Charsets:
    """The character sets of one server, by the numbers of its collations."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names

    def decoder(self, collation: int) -> Decode:
        """Raises UnsupportedTypeError for a character set that Python does not have."""
        return decoder(self._names.get(collation, f"with the collation number {collation}"))

    def to_json(self, collation: int) -> Callable[[bytes], bytes]:
        """What turns text in this collation into a JSON string."""
        name = self._names.get(collation, "")
        if _ENCODINGS.get(name) in ("utf-8", "ascii"):
            return text_json
        decode = self.decoder(collation)
        return lambda data: text_json(decode(data).encode())


@functools.cache
def decoder(charset: str) -> Decode:
    if charset == "latin1":
        return lambda data: codecs.charmap_decode(data, "strict", _LATIN1)[0]
    encoding = _ENCODINGS.get(charset)
    if encoding is None:
        raise UnsupportedTypeError(
            f"text in the character set {charset} cannot be captured: convert the table to utf8mb4, or leave it out"
        )
    return lambda data: data.decode(encoding, errors="replace")
