"""Aliases: names that lead readers to the topic that is current.

`penstock.aliases` maps a name to a topic. When the results of a pipeline were computed anew into `spend.v2`, the name
`spend` is switched there, and whoever reads `spend` from then on reads the new results. Readers resolve a name when
they begin: those that run go on with what they have until they are started again. Writers never resolve: what is
written to `spend` goes to `spend`.

An alias is followed one step. A name without one is itself.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Final

import msgspec
from confluent_kafka import KafkaError

from penstock.abc import Streams
from penstock.errors import AliasChangedError, ConfigError, StreamError
from penstock.streams.kafka.failures import reason_of
from penstock.streams.noticeboard import Changes, Noticeboard, Notices

logger = logging.getLogger(__name__)

ALIASES_TOPIC: Final = "penstock.aliases"
_FRESH_S: Final = 1.0
"""How long what was read serves others that begin: the handlers of an app, the inputs of a pipeline."""

_lock = threading.Lock()
_seen: weakref.WeakKeyDictionary[Streams, tuple[float | None, Notices]] = weakref.WeakKeyDictionary()


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """Where a name leads."""

    topic: str
    pipeline: str | None = None
    """What writes this topic, if a pipeline does."""
    version: str | None = None
    since: str = ""


def current_topic(streams: Streams, name: str) -> str:
    """The topic that readers of this name read now. What was looked up is believed for a second."""
    text = _notices(streams).get(name)
    return name if text is None else _alias(name, text).topic


def aliases(streams: Streams) -> dict[str, Alias]:
    """All of them, by name, as they are now."""
    return {name: _alias(name, text) for name, text in noticeboard(streams).read().items() if is_alias(name)}


def switch(
    streams: Streams,
    name: str,
    topic: str,
    *,
    expected: str | None = None,
    pipeline: str | None = None,
    version: str | None = None,
) -> None:
    """Lead the readers of a name to this topic; to itself, when that is the name.

    With `expected`, only if they are led to that one now: AliasChangedError when somebody else was quicker. Of two
    that switch at once with what both have seen, one does. Raises UnknownTopicError when there is no such topic.
    """
    streams.stream(topic).partitions()

    def decide(notices: Notices) -> Changes:
        return switched(notices, {name: topic}, {} if expected is None else {name: expected}, pipeline, version)

    noticeboard(streams).change(decide)
    forget(streams)


def switched(
    notices: Notices,
    topics: Mapping[str, str],
    expected: Mapping[str, str],
    pipeline: str | None = None,
    version: str | None = None,
) -> dict[str, bytes | None]:
    """What must change on the noticeboard so that each name leads to its topic. AliasChangedError as `switch`."""
    for name, topic in expected.items():
        now = _alias(name, notices[name]).topic if name in notices else name
        if now != topic:
            raise AliasChangedError(
                f"{name!r} leads to topic {now!r} now, not to {topic!r}: somebody has switched it. Look again before "
                "you switch: penstock pipelines"
            )
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return {
        name: None
        if topic == name
        else msgspec.json.encode(Alias(topic=topic, pipeline=pipeline, version=version, since=since))
        for name, topic in topics.items()
    }


def noticeboard(streams: Streams) -> Noticeboard:
    """Where aliases stand, and what else is to change in one with them: keys that are no names of topics."""
    return Noticeboard(streams, ALIASES_TOPIC)


def is_alias(key: str) -> bool:
    """Whether a notice is an alias: its key might be the name of a topic."""
    return key.isascii() and all(character.isalnum() or character in "._-" for character in key)


def forget(streams: Streams) -> None:
    """Look again next time."""
    with _lock:
        _seen.pop(streams, None)


def _notices(streams: Streams) -> Notices:
    with _lock:
        read_s, notices = _seen.get(streams, (None, {}))
        if read_s is not None and time.monotonic() - read_s < _FRESH_S:
            return notices
    try:
        notices = noticeboard(streams).read()
    except StreamError as error:
        if not _is_forbidden(error):
            raise
        logger.warning("names are read as topics, as aliases may not be looked up: %s", error)
        notices = {}
    with _lock:
        _seen[streams] = (time.monotonic(), notices)
    return notices


def _is_forbidden(error: StreamError) -> bool:
    reason = None if error.__cause__ is None else reason_of(error.__cause__)
    return reason is not None and reason.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def _alias(name: str, text: bytes) -> Alias:
    try:
        return msgspec.json.decode(text, type=Alias)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"the alias of {name!r} in topic {ALIASES_TOPIC!r} cannot be read ({error}): switch it anew, "
            "or remove it with a record of this key without a value"
        ) from error
