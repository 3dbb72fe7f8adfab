"""Which topics to read: one, a list of them, or all that match a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.abc import Stream
from penstock.errors import ConfigError, InvalidTopicError
from penstock.model import Position, PositionKind, check_topic_name
from penstock.serde import Topic

REFRESH_S: Final = 2.0
"""How often, in seconds, readers of a pattern look for topics that were created or deleted."""
DEAD_LETTER_SUFFIX: Final = ".dlq"
_INTERNAL: Final = ("__", "penstock.")
"""How the names of topics begin that Kafka and this library keep for themselves."""


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """All topics whose whole name matches, and how their values are decoded.

    ```python
    TopicPattern(re.compile(r"orders\\..*"), Order)
    ```
    `type`, `serde` and `key_serde` are those of `Topic`. A plain `re.Pattern` can stand wherever a TopicPattern can:
    its values are bytes, unless the type annotation of a handler says otherwise.

    Topics whose names begin with `__` or `penstock.` never match: Kafka and this library keep their own records there.
    Topics that end in `.dlq` match only a pattern in which `dlq` occurs. The dead letters of a matching topic,
    `TOPIC.dlq`, never match themselves.
    """

    pattern: re.Pattern[str]
    type: Any = bytes
    serde: object = None
    key_serde: object = None

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, re.Pattern) or not isinstance(self.pattern.pattern, str):
            raise ConfigError(f'{self.pattern!r} must be a compiled pattern of str, such as re.compile(r"orders\\..*")')
        self.topic(self.label)  # raises for a type without a serde

    def matches(self, name: str) -> bool:
        """Whether a topic of this name belongs to the pattern."""
        if name.startswith(_INTERNAL) or self.pattern.fullmatch(name) is None:
            return False
        if not name.endswith(DEAD_LETTER_SUFFIX):
            return True
        return "dlq" in self.pattern.pattern and not self.matches(name.removesuffix(DEAD_LETTER_SUFFIX))

    def topic(self, name: str) -> Topic[Any]:
        """A matching topic, with the type and the serdes of the pattern."""
        return Topic(name, self.type, serde=self.serde, key_serde=self.key_serde)

    @property
    def label(self) -> str:
        """The pattern as a name: what a topic's name cannot hold is replaced."""
        return f"pattern-{re.sub(r'[^A-Za-z0-9._-]+', '-', self.pattern.pattern)[:200]}"

    def find(self, stream: Stream, excluded: Collection[str] | Callable[[str], bool] = ()) -> list[str]:
        """The names of the topics that match now, in order, without those `excluded`."""
        is_excluded = excluded if callable(excluded) else excluded.__contains__
        return sorted(name for name in stream.topics() if self.matches(name) and not is_excluded(name))

    def __str__(self) -> str:
        return self.pattern.pattern


TopicChoice = str | Topic[Any] | re.Pattern[str] | TopicPattern | Sequence[str | Topic[Any]]
"""A topic by name or as a Topic, a list of them, or a pattern. Text is always the name of one topic."""


def topics_of(choice: TopicChoice) -> list[str | Topic[Any]] | TopicPattern:
    """The chosen topics, at least one and each once, or the pattern. InvalidTopicError for anything else."""
    if isinstance(choice, TopicPattern):
        return choice
    if isinstance(choice, re.Pattern):
        return TopicPattern(choice)
    if isinstance(choice, str | Topic):
        check_topic_name(str(choice))
        return [choice]
    if not isinstance(choice, Sequence) or isinstance(choice, bytes | bytearray | memoryview):
        raise InvalidTopicError(
            f"{choice!r} is not a topic: pass its name, a Topic, a list of them, or a compiled pattern"
        )
    topics = list(choice)
    if not topics:
        raise InvalidTopicError("the list of topics is empty: name at least one")
    names: set[str] = set()
    for topic in topics:
        if not isinstance(topic, str | Topic):
            raise InvalidTopicError(
                f"{topic!r} in a list of topics is not a topic: pass names and Topics, or one pattern without a list"
            )
        check_topic_name(str(topic))
        if str(topic) in names:
            raise InvalidTopicError(f"topic {str(topic)!r} occurs twice in the list of topics")
        names.add(str(topic))
    return topics


def described(choice: Sequence[str | Topic[Any]] | TopicPattern) -> str:
    """The chosen topics, for messages."""
    if isinstance(choice, TopicPattern):
        return f"topics that match {str(choice)!r}"
    names = ", ".join(repr(str(topic)) for topic in choice)
    return f"topic {names}" if len(choice) == 1 else f"topics {names}"


def check_position_for_several(position: Position | None, what: str) -> None:
    """ConfigError for a position at a pointer: pointers of different topics have nothing to do with each other."""
    if position is not None and position.kind is PositionKind.POINTER:
        raise ConfigError(
            f"{what} is a pointer, which has a meaning in one topic only: with several topics, use "
            '"earliest", "latest" or a time, or read each topic by itself'
        )
