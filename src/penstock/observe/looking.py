"""One cheap pass over everything: the stream, its checkpoints, its dead letters, and the folders of pipelines.

A look at a stream of 1,000 topics is a handful of requests, whatever has happened since the last one. What changes
seldom (settings, sizes) is asked for seldom; what costs reading (dead letters, the time of a single record) is bounded
and remembered. The rest of this room, and everything that shows it, lives on what a look gives.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.abc import CheckpointStore, Clock
from penstock.errors import BrokerUnavailableError, ConfigError, PenstockError, StreamError
from penstock.model.clock import SystemClock
from penstock.observe.facts import GroupFacts, LetterFacts, PipelineFacts, Snapshot, TopicFacts
from penstock.observe.groups import GroupSight
from penstock.observe.letters import LetterCounting
from penstock.observe.library_groups import LibraryGroups
from penstock.observe.pipelines import find_pipelines
from penstock.observe.topics import TopicSight
from penstock.streams import Connection
from penstock.streams.kafka.groups import Place
from penstock.streams.kafka.record_times import RecordTime, RecordTimes
from penstock.streams.kafka.survey import TIMEOUT_S, Survey
from penstock.streams.url import LogUrl, MemoryUrl, parse_url

logger = logging.getLogger(__name__)

READ_S: Final = 3.0
"""How long a look waits for the records that it reads to learn their times."""
PIPELINES: Final = "pipelines"


class Looker:
    """Looks at a system, again and again. Used by one thread at a time.

    `checkpoints` is the store of the library's groups, as a consumer is given it; without it, those are looked at that
    consumers use when they are given none, if they are there. `dead_letters` are places beside the topics that end in
    `.dlq`. `pipelines` is the folder of their checkpoints: beside an embedded log's records, or else in the working
    folder. A broker that does not answer is waited for `timeout_s`.
    """

    def __init__(
        self,
        connection: Connection | None,
        *,
        checkpoints: str | CheckpointStore | None = None,
        dead_letters: Sequence[str] = (),
        pipelines: Path | None = None,
        clock: Clock | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._timeout_s = timeout_s
        self._pipelines = pipelines
        self._topics = TopicSight(self._clock)
        self._groups = GroupSight()
        self._library = LibraryGroups(checkpoints, self._clock)
        self._letters = LetterCounting(dead_letters, self._clock)
        self._times: RecordTimes | None = None
        self._connection: Connection | None = None
        self._last = Snapshot(self._clock.wall_ms(), problem="nothing was looked at yet")
        if connection is not None:
            self.use(connection)

    def use(self, connection: Connection) -> None:
        """Look over this connection from now on. What is known is kept: it is the same stream, connected anew."""
        if isinstance(parse_url(connection.url), MemoryUrl):
            raise ConfigError(f"{connection.url} has no topics that could be looked at: use a log: or kafka: URL")
        if self._times is not None:
            self._times.close()
        survey = Survey(connection.administration.admin, self._timeout_s)
        self._connection = connection
        self._times = RecordTimes(connection.bootstrap, connection.options)
        self._topics.use(survey, self._sizes)
        self._groups.use(survey)
        self._library.use(connection)
        self._letters.use(connection)

    def look(self) -> Snapshot:
        """What is so now; what was last known, with `problem` set, when the stream cannot be asked. Never raises one
        of the library's errors."""
        begun_s, at_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        letters: Mapping[str, LetterFacts]
        try:
            topics, groups = self._look_at_stream(at_ms)
            letters = self._letters.look(topics)
            problem = None
        except PenstockError as error:
            topics, groups = dict(self._last.topics), dict(self._last.groups)
            letters = {**self._last.letters, **self._letters.look_elsewhere()}
            problem = str(error)
        self._last = Snapshot(
            at_ms,
            topics,
            groups,
            letters,
            self._look_at_pipelines(),
            problem,
            took_s=self._clock.monotonic_s() - begun_s,
        )
        return self._last

    def failed(self, problem: str) -> Snapshot:
        """What was last known, with why there is no more: for whoever could not even connect."""
        self._last = dataclasses.replace(
            self._last,
            at_ms=self._clock.wall_ms(),
            letters={**self._last.letters, **self._letters.look_elsewhere()},
            pipelines=self._look_at_pipelines(),
            problem=problem,
            took_s=0.0,
        )
        return self._last

    def close(self) -> None:
        """Close what was opened here. The connection is not ours."""
        self._library.close()
        self._letters.close()
        if self._times is not None:
            self._times.close()

    def _look_at_stream(self, at_ms: int) -> tuple[dict[str, TopicFacts], dict[str, GroupFacts]]:
        if self._connection is None:
            raise BrokerUnavailableError("there is no connection to the stream")
        self._connection.administration  # noqa: B018 says so at once when the connection cannot be used any more
        topics = self._topics.look(at_ms, self._groups.read)
        library = self._library.look(self._topics.ends)
        groups = self._groups.look(at_ms, topics, self._topics, library, self._read)
        return topics, groups

    def _read(self, pointers: Mapping[Place, int]) -> Mapping[Place, RecordTime | None]:
        assert self._times is not None
        try:
            return self._times.first_from(pointers, READ_S)
        except PenstockError as error:
            logger.info("the times of %d records are not known: %s", len(pointers), error)
            return {}

    def _sizes(self) -> dict[Place, int] | None:
        """None where they cannot be known: not everybody may ask for them."""
        assert self._connection is not None
        try:
            return self._connection.administration.sizes()
        except StreamError as error:
            logger.info("%s", error)
            return None

    def _look_at_pipelines(self) -> dict[str, PipelineFacts]:
        folder = self._pipelines
        if folder is None:
            folder = Path(PIPELINES)
            where = parse_url(self._connection.url) if self._connection is not None else None
            if isinstance(where, LogUrl):
                folder = where.folder / PIPELINES
        return find_pipelines(folder)
