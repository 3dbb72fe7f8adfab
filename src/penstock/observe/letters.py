"""How many dead letters wait, in every store. Counted again only after a change."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.abc import Clock, DeadLetters
from penstock.dead_letters.opening import DEAD_LETTER_FORMS, is_place, names_a_topic, open_dead_letters, path_of
from penstock.errors import ConfigError, PenstockError
from penstock.model import DeadLetterFilter
from penstock.observe.facts import LetterFacts, TopicFacts
from penstock.streams import Connection

logger = logging.getLogger(__name__)

SUFFIX: Final = ".dlq"
"""Topics whose names end like this hold dead letters."""
COUNTED_UP_TO: Final = 50_000
"""A topic with more records is not read to count its letters: its size is reported instead."""
COUNTED_IN_ALL: Final = 200_000
"""The limit for all topics together: what is known of their letters is held in memory."""
ELSEWHERE_EVERY_S: Final = 30.0
"""How often a store that does not show whether it has changed is counted again, and one that failed."""
_SLOWER: Final = 30
"""Counting takes at most one part in this many of the time."""


class LetterCounting:
    """The dead-letter stores, and how many letters wait in each. Used by one thread at a time."""

    def __init__(self, specs: Sequence[str], clock: Clock) -> None:
        for spec in specs:
            if not is_place(spec):
                raise ConfigError(f"{spec!r} does not name dead letters: use {DEAD_LETTER_FORMS}")
        self._specs = tuple(specs)
        self._clock = clock
        self._connection: Connection | None = None
        self._opened: dict[str, DeadLetters] = {}
        self._counted: dict[str, tuple[Hashable | None, LetterFacts]] = {}
        self._due_s: dict[str, float] = {}

    def use(self, connection: Connection) -> None:
        self.close()
        self._connection = connection

    def look(self, topics: Mapping[str, TopicFacts]) -> dict[str, LetterFacts]:
        """Each store with what waits there. `topics` are the stream's current ones."""
        found: dict[str, LetterFacts] = {}
        budget = COUNTED_IN_ALL
        for topic in sorted({*(each for each in topics if each.endswith(SUFFIX)), *filter(names_a_topic, self._specs)}):
            facts = topics.get(topic)
            if facts is None:
                found[topic] = LetterFacts(topic, 0)
                continue
            records = facts.records or 0  # unknown where the stream does not count them: then they are read
            if records > min(COUNTED_UP_TO, budget):
                self._let_go(topic)
                found[topic] = LetterFacts(topic, records, is_exact=False)
                continue
            budget -= records
            mark = tuple((each.partition, each.start, each.end) for each in facts.partitions)
            found[topic] = self._count(topic, mark, LetterFacts(topic, records, is_exact=False))
        found |= self.look_elsewhere()
        return found

    def look_elsewhere(self) -> dict[str, LetterFacts]:
        """The stores that are not topics, which can be counted while the stream is away."""
        found: dict[str, LetterFacts] = {}
        for spec in self._specs:
            if names_a_topic(spec):
                continue
            path = path_of(spec)
            known = self._counted.get(spec, (None, LetterFacts(spec, 0, is_exact=False)))[1]
            try:
                if path is not None and not path.exists():
                    found[spec] = LetterFacts(spec, 0)
                    continue
                mark = None if path is None else _stamps(path)
            except OSError as error:
                logger.warning("the dead letters in %s cannot be read: %s", spec, error)
                found[spec] = known
                continue
            found[spec] = self._count(spec, mark, known)
        return found

    def close(self) -> None:
        for spec in list(self._opened):
            self._let_go(spec)

    def _count(self, spec: str, mark: Hashable | None, otherwise: LetterFacts) -> LetterFacts:
        """The number of waiting letters, counted again when `mark` changes. `otherwise` if they cannot be counted."""
        known = self._counted.get(spec)
        now_s = self._clock.monotonic_s()
        if known is not None and known[0] is not None and known[0] == mark:
            return known[1]
        if now_s < self._due_s.get(spec, float("-inf")):
            return known[1] if known is not None else otherwise
        try:
            opened = self._opened.get(spec)
            if opened is None:
                opened = self._opened[spec] = open_dead_letters(spec, self._connection)
            facts = LetterFacts(spec, opened.count(DeadLetterFilter()))
        except (PenstockError, OSError) as error:
            logger.warning("the dead letters in %s could not be counted: %s", spec, error)
            self._let_go(spec)
            self._due_s[spec] = now_s + ELSEWHERE_EVERY_S
            return otherwise
        took_s = self._clock.monotonic_s() - now_s
        self._due_s[spec] = now_s + max(took_s * _SLOWER, ELSEWHERE_EVERY_S if mark is None else 0.0)
        self._counted[spec] = (mark, facts)
        return facts

    def _let_go(self, spec: str) -> None:
        opened = self._opened.pop(spec, None)
        if opened is not None:
            with contextlib.suppress(PenstockError):
                opened.close()


def _stamps(path: Path) -> Hashable:
    """Changes when a file, its write-ahead log, or a folder of files does."""
    files = sorted(path.iterdir()) if path.is_dir() else [path, Path(f"{path}-wal")]
    stamps = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            stamps.append((file.name, status.st_mtime_ns, status.st_size))
    return tuple(stamps)
