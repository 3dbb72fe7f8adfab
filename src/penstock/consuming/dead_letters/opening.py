"""From what a user writes to the dead letters that are meant."""

from __future__ import annotations

import re
from typing import Final

from penstock import abc
from penstock.errors import ConfigError

DEAD_LETTER_FORMS: Final = (
    "the name of a topic (orders.dlq), sqlite:PATH (sqlite:./dead-letters.db), file:PATH (file:./letters.jsonl, or a "
    "folder), postgresql://USER@HOST/DATABASE, or an object with the methods of penstock.abc.DeadLetters"
)

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_METHODS: Final = ("put", "browse", "count", "take", "settle", "discard", "close")


def open_dead_letters(spec: str | abc.DeadLetters, streams: abc.Streams | None = None) -> abc.DeadLetters:
    """The dead letters that a user means: see DEAD_LETTER_FORMS. A topic is one of `streams`.

    Who opens them closes them; an object is given back as it is. Raises ConfigError.
    """
    if not isinstance(spec, str):
        missing = [name for name in _METHODS if not callable(getattr(spec, name, None))]
        if missing:
            raise ConfigError(
                f"{spec!r} cannot keep dead letters: it has no {', '.join(missing)}. Use {DEAD_LETTER_FORMS}"
            )
        return spec
    if _TOPIC.fullmatch(spec) and spec not in (".", ".."):
        if streams is None:
            raise ConfigError(f"{spec!r} is the name of a topic, and there is no stream to look for it in")
        from penstock.consuming.dead_letters.stream import StreamDeadLetters

        return StreamDeadLetters(streams, spec)
    scheme, _, rest = spec.partition(":")
    match scheme.lower():
        case "sqlite" if rest.strip("/"):
            from penstock.consuming.dead_letters.sqlite import SqliteDeadLetters

            return SqliteDeadLetters(_path(rest))
        case "file" if rest.strip("/"):
            from penstock.consuming.dead_letters.file import FileDeadLetters

            return FileDeadLetters(_path(rest))
        case "postgresql" | "postgres" if rest.startswith("//"):
            from penstock.consuming.dead_letters.postgres import PostgresDeadLetters

            return PostgresDeadLetters(spec)
        case _:
            raise ConfigError(f"{spec!r} names no place for dead letters: use {DEAD_LETTER_FORMS}")


def _path(text: str) -> str:
    """`sqlite:./x`, `sqlite:/x` and `sqlite:///x` are all written."""
    return "/" + text.lstrip("/") if text.startswith("//") else text
