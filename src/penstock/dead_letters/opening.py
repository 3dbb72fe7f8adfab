"""Open dead letters from what a user writes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock import abc
from penstock.dead_letters.file import FileDeadLetters
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.dead_letters.stream import StreamDeadLetters
from penstock.errors import ConfigError
from penstock.model import is_topic_name
from penstock.streams.schemes import DEAD_LETTERS, has_scheme, installed_schemes, opener, scheme_of

DEAD_LETTER_FORMS: Final = (
    "the name of a topic (orders.dlq), sqlite:PATH (sqlite:./dead-letters.db), file:PATH (file:./letters.jsonl, or a "
    "folder), postgresql://USER@HOST/DATABASE, or an object with the methods of penstock.abc.DeadLetters"
)

_METHODS: Final = ("put", "browse", "count", "take", "settle", "discard", "close")


def open_dead_letters(spec: str | abc.DeadLetters, stream: abc.Stream | None = None) -> abc.DeadLetters:
    """Open the dead letters that `spec` names: see DEAD_LETTER_FORMS. A topic is one of `stream`.

    The caller closes them; an object is returned unchanged. Raises ConfigError.
    """
    if not isinstance(spec, str):
        missing = [name for name in _METHODS if not callable(getattr(spec, name, None))]
        if missing:
            raise ConfigError(
                f"{spec!r} cannot store dead letters: it has no {', '.join(missing)}. Use {DEAD_LETTER_FORMS}"
            )
        return spec
    if names_a_topic(spec):
        if stream is None:
            raise ConfigError(f"{spec!r} is the name of a topic, but no stream is given")
        return StreamDeadLetters(stream, spec)
    if not has_scheme(DEAD_LETTERS, scheme_of(spec)):
        installed = ", ".join(installed_schemes(DEAD_LETTERS))
        raise ConfigError(f"{spec!r} does not name dead letters: use {DEAD_LETTER_FORMS}. Installed: {installed}")
    opened: abc.DeadLetters = opener(DEAD_LETTERS, spec, "dead letters")(spec)
    return opened


def is_place(spec: str) -> bool:
    """Whether this names dead letters: a topic, or a URL whose scheme is installed."""
    return names_a_topic(spec) or has_scheme(DEAD_LETTERS, scheme_of(spec))


def open_sqlite(url: str) -> abc.DeadLetters:
    return SqliteDeadLetters(_path(url))


def open_file(url: str) -> abc.DeadLetters:
    return FileDeadLetters(_path(url))


def open_postgres(url: str) -> abc.DeadLetters:
    if "://" not in url:
        raise ConfigError(f"{url!r} does not name dead letters: use {DEAD_LETTER_FORMS}")
    from penstock.dead_letters.postgres import PostgresDeadLetters

    return PostgresDeadLetters(url)


def _path(url: str) -> Path:
    path = path_of(url)
    if path is None:
        raise ConfigError(f"{url!r} does not name dead letters: use {DEAD_LETTER_FORMS}")
    return path


def names_a_topic(spec: str) -> bool:
    """Whether these letters are in a topic of the stream."""
    return is_topic_name(spec)


def path_of(spec: str) -> Path | None:
    """The path of these letters on disk; None for those that are elsewhere.

    `sqlite:./x`, `sqlite:/x` and `sqlite:///x` are all accepted.
    """
    scheme, _, rest = spec.partition(":")
    if scheme.lower() not in ("sqlite", "file") or not rest.strip("/"):
        return None
    return Path("/" + rest.lstrip("/") if rest.startswith("//") else rest)
