"""What the statements in a row binlog do to tables: DDL, and the frame of transactions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from penstock.tables.cdc.mysql.binlog import Query

_TOKEN: Final = re.compile(
    r"""
    /\*[!M]+\d*|\*/             # what only some versions execute: its content counts
    |/\*.*?\*/|--[ \t\n].*?(?:\n|$)|\#.*?(?:\n|$)
    |`(?P<quoted>(?:[^`]|``)*)`
    |"(?P<double>(?:[^"\\]|""|\\.)*)"
    |'(?:[^'\\]|''|\\.)*'
    |(?P<word>[\w$\x80-\U0010ffff]+)
    |(?P<mark>[^\s])
    """,
    re.VERBOSE | re.DOTALL,
)
_PARTITION_DATA: Final = ("TRUNCATE", "DROP", "EXCHANGE", "DISCARD", "IMPORT", "CONVERT")
_DATA: Final = ("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO", "SELECT")


class Effect(Enum):
    """What a statement does to a table, or to its transaction."""

    BEGIN = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    SAVEPOINT = auto()
    """`name` is that of the savepoint."""
    ROLLBACK_TO = auto()
    XA_START = auto()
    TRUNCATE = auto()
    ALTER = auto()
    """The table may have other columns."""
    REMOVED = auto()
    """The table was dropped, replaced or renamed; `name` may be `SCHEMA.*`."""
    REWRITTEN = auto()
    """Rows changed without events."""
    DATA = auto()
    """Rows changed by a statement, not by row events."""


@dataclass(frozen=True, slots=True)
class Statement:
    effect: Effect
    name: str = ""
    """SCHEMA.TABLE, or a savepoint."""


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    is_name: bool

    @property
    def word(self) -> str:
        """In capitals, unless it is quoted."""
        return "" if self.is_name else self.text.upper()


def effects(query: Query) -> list[Statement]:
    """What the statement does; nothing if it does not concern tables."""
    return list(_effects(_Words(query)))


class _Words:
    """The tokens of a statement, one after the other."""

    def __init__(self, query: Query) -> None:
        self.schema = query.schema
        self._tokens: list[_Token] = []
        for found in _TOKEN.finditer(query.text):
            if found["quoted"] is not None:
                self._tokens.append(_Token(found["quoted"].replace("``", "`"), True))
            elif found["double"] is not None:
                self._tokens.append(_Token(found["double"].replace('""', '"'), True))
            elif found["word"] or found["mark"]:
                self._tokens.append(_Token(found["word"] or found["mark"], False))
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._tokens)

    def take(self, *words: str) -> bool:
        """Whether these words follow; then they are passed."""
        following = [each.word for each in self._tokens[self._at : self._at + len(words)]]
        if following != list(words):
            return False
        self._at += len(words)
        return True

    def skip(self, *words: str) -> None:
        """Pass any of these words, in any order."""
        while not self.is_over and self._tokens[self._at].word in words:
            self._at += 1

    def next(self) -> _Token:
        if self.is_over:
            return _Token("", False)
        self._at += 1
        return self._tokens[self._at - 1]

    def table(self) -> str:
        first = self.next().text
        return f"{first}.{self.next().text}" if self.take(".") else f"{self.schema}.{first}"

    def tables(self) -> Iterator[str]:
        yield self.table()
        while self.take(","):
            yield self.table()


def _effects(words: _Words) -> Iterator[Statement]:
    if words.take("SET", "STATEMENT"):  # MariaDB: settings for the statement that follows
        while not words.is_over and not words.take("FOR"):
            words.next()
    if words.take("BEGIN"):
        yield Statement(Effect.BEGIN)
    elif words.take("COMMIT"):
        yield Statement(Effect.COMMIT)
    elif words.take("ROLLBACK"):
        words.skip("WORK")
        is_partial = words.take("TO")
        words.skip("SAVEPOINT")
        yield Statement(Effect.ROLLBACK_TO, words.next().text) if is_partial else Statement(Effect.ROLLBACK)
    elif words.take("SAVEPOINT"):
        yield Statement(Effect.SAVEPOINT, words.next().text)
    elif words.take("XA", "START") or words.take("XA", "BEGIN"):
        yield Statement(Effect.XA_START)
    elif words.take("TRUNCATE"):
        words.skip("TABLE")
        yield Statement(Effect.TRUNCATE, words.table())
    elif words.take("RENAME"):
        if words.take("TABLE") or words.take("TABLES"):
            yield from _renamed(words)
    elif words.take("DROP"):
        yield from _dropped(words)
    elif words.take("CREATE"):
        is_replaced = words.take("OR", "REPLACE")
        if words.take("TABLE") and is_replaced:
            yield Statement(Effect.REMOVED, words.table())
    elif words.take("ALTER"):
        words.skip("ONLINE", "IGNORE")
        if words.take("TABLE"):
            yield from _altered(words)
    elif any(words.take(word) for word in _DATA):
        yield Statement(Effect.DATA)


def _renamed(words: _Words) -> Iterator[Statement]:
    words.skip("IF", "EXISTS")
    while not words.is_over:
        yield Statement(Effect.REMOVED, words.table())
        words.skip("WAIT", "NOWAIT")
        while not words.is_over and not words.take("TO"):
            words.next()
        yield Statement(Effect.REMOVED, words.table())
        while not words.is_over and not words.take(","):
            words.next()


def _dropped(words: _Words) -> Iterator[Statement]:
    if words.take("TABLE") or words.take("TABLES"):
        words.skip("IF", "EXISTS")
        yield from (Statement(Effect.REMOVED, name) for name in words.tables())
    elif words.take("DATABASE") or words.take("SCHEMA"):
        words.skip("IF", "EXISTS")
        yield Statement(Effect.REMOVED, words.next().text + ".*")


def _altered(words: _Words) -> Iterator[Statement]:
    words.skip("IF", "EXISTS")
    table = words.table()
    words.skip("NOWAIT")
    if words.take("WAIT"):
        words.next()
    depth = 0
    is_first = True
    """Whether a new part of the statement begins here."""
    while not words.is_over:
        if is_first and words.take("RENAME"):
            if not any(words.take(word) for word in ("COLUMN", "INDEX", "KEY")):
                words.skip("TO", "AS", "=")
                yield Statement(Effect.REMOVED, table)
                yield Statement(Effect.REMOVED, words.table())
            is_first = False
        elif (
            is_first
            and (words.take("CONVERT", "TABLE") or any(words.take(word, "PARTITION") for word in _PARTITION_DATA))
        ) or (is_first and any(words.take(word, "TABLESPACE") for word in ("DISCARD", "IMPORT"))):
            yield Statement(Effect.REWRITTEN, table)
        else:
            mark = words.next().word
            depth += (mark == "(") - (mark == ")")
            is_first = mark == "," and depth == 0
    yield Statement(Effect.ALTER, table)
