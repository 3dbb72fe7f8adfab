"""Aliases: names that lead readers to the current topic.

The topic `penstock.aliases` maps names to topics. After a pipeline has recomputed its results into `spend.v2`, the name
`spend` is switched there, and new readers of `spend` read the new results. Readers resolve a name when they start, and
keep that topic until they are restarted. Writers never resolve names: records for `spend` go to the topic `spend`.

An alias is followed one step. A name without an alias is the topic itself.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.abc import Stream
from penstock.errors import AliasChangedError, ConfigError, NotAllowedError
from penstock.streams.key_value_topic import Changes, KeyValueTopic, Values

logger = logging.getLogger(__name__)

ALIASES_TOPIC: Final = "penstock.aliases"
_FRESH_S: Final = 1.0
"""How long the aliases are cached, so that all handlers of an app, or inputs of a pipeline, read them once."""

_lock = threading.Lock()
_seen: weakref.WeakKeyDictionary[Stream, tuple[float | None, Values]] = weakref.WeakKeyDictionary()


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    pipeline: str | None = None
    """The pipeline that writes this topic, if any."""
    version: str | None = None
    since: str = ""


def current_topic(stream: Stream, name: str) -> str:
    """The topic that readers of this name read now. Cached for a second."""
    text = _values(stream).get(name)
    return name if text is None else _alias(name, text).topic


def aliases(stream: Stream) -> dict[str, Alias]:
    """All aliases by name, not cached."""
    return {name: _alias(name, text) for name, text in aliases_topic(stream).read().items() if is_alias(name)}


def switch(
    stream: Stream,
    name: str,
    topic: str,
    *,
    expected: str | None = None,
    pipeline: str | None = None,
    version: str | None = None,
) -> None:
    """Switch a name to this topic; a topic of the same name removes the alias.

    With `expected`, only if the name leads to that topic now: else AliasChangedError. Raises UnknownTopicError if the
    new topic does not exist.
    """
    with contextlib.closing(stream.open_topic(topic)) as opened:
        opened.partitions()

    def decide(values: Values) -> Changes:
        return switched(values, {name: topic}, {} if expected is None else {name: expected}, pipeline, version)

    aliases_topic(stream).change(decide)
    forget(stream)


def switched(
    values: Values,
    topics: Mapping[str, str],
    expected: Mapping[str, str],
    pipeline: str | None = None,
    version: str | None = None,
) -> dict[str, bytes | None]:
    """The changes that switch each name to its topic. Raises AliasChangedError as `switch` does."""
    for name, topic in expected.items():
        now = _alias(name, values[name]).topic if name in values else name
        if now != topic:
            raise AliasChangedError(
                f"{name!r} leads to topic {now!r} now, not to {topic!r}: another process switched it. Check before "
                "you switch again: penstock pipelines versions"
            )
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return {
        name: None
        if topic == name
        else msgspec.json.encode(Alias(topic=topic, pipeline=pipeline, version=version, since=since))
        for name, topic in topics.items()
    }


def aliases_topic(stream: Stream) -> KeyValueTopic:
    """The topic with the aliases, and with other keys that change in one transaction with them."""
    return KeyValueTopic(stream, ALIASES_TOPIC)


def is_alias(key: str) -> bool:
    """Whether the key is that of an alias: a valid topic name."""
    return key.isascii() and all(character.isalnum() or character in "._-" for character in key)


def forget(stream: Stream) -> None:
    """Drop the cached aliases."""
    with _lock:
        _seen.pop(stream, None)


def _values(stream: Stream) -> Values:
    with _lock:
        read_s, values = _seen.get(stream, (None, {}))
        if read_s is not None and time.monotonic() - read_s < _FRESH_S:
            return values
    try:
        values = aliases_topic(stream).read()
    except NotAllowedError as error:
        logger.warning("aliases are ignored, because reading them is not allowed: %s", error)
        values = {}
    with _lock:
        _seen[stream] = (time.monotonic(), values)
    return values


def _alias(name: str, text: bytes) -> Alias:
    try:
        return msgspec.json.decode(text, type=Alias)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"the alias of {name!r} in topic {ALIASES_TOPIC!r} cannot be read ({error}): switch it again, "
            "or remove it with a record of this key without a value"
        ) from error
