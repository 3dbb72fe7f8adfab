"""From what a user writes to the dead letters that are meant."""

from __future__ import annotations

import re
from pathlib import Path
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
    if names_a_topic(spec):
        if streams is None:
            raise ConfigError(f"{spec!r} is the name of a topic, and there is no stream to look for it in")
        from penstock.consuming.dead_letters.stream import StreamDeadLetters

        return StreamDeadLetters(streams, spec)
    path = path_of(spec)
    scheme = spec.partition(":")[0].lower()
    if path is not None and scheme == "sqlite":
        from penstock.consuming.dead_letters.sqlite import SqliteDeadLetters

        return SqliteDeadLetters(path)
    if path is not None:
        from penstock.consuming.dead_letters.file import FileDeadLetters

        return FileDeadLetters(path)
    if spec.startswith(("postgresql://", "postgres://")):
        from penstock.consuming.dead_letters.postgres import PostgresDeadLetters

        return PostgresDeadLetters(spec)
    raise ConfigError(f"{spec!r} names no place for dead letters: use {DEAD_LETTER_FORMS}")


def names_a_topic(spec: str) -> bool:
    """Whether these letters are in a topic of the stream."""
    return _TOPIC.fullmatch(spec) is not None and spec not in (".", "..")


def path_of(spec: str) -> Path | None:
    """Where on the disk these letters are; None for those that are elsewhere.

    `sqlite:./x`, `sqlite:/x` and `sqlite:///x` are all written.
    """
    scheme, _, rest = spec.partition(":")
    if scheme.lower() not in ("sqlite", "file") or not rest.strip("/"):
        return None
    return Path("/" + rest.lstrip("/") if rest.startswith("//") else rest)
