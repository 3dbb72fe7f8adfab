"""One cheap pass over everything: the stream, its checkpoints, dead letters, captures, and the folders of pipelines.

A look at a stream of 1,000 topics is a handful of requests, whatever has happened since the last one. What changes
seldom (settings, sizes) is asked for seldom; what costs reading (dead letters, the time of a single record) is bounded
and cached. Everything else in this room works on the resulting snapshots.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.abc import CheckpointStore, Clock, Feature, RecordTimes
from penstock.errors import BrokerUnavailableError, ConfigError, PenstockError, StreamError
from penstock.model.administration import PartitionId, RecordTime
from penstock.model.clock import SystemClock
from penstock.observe.captures import CaptureObserver
from penstock.observe.facts import GroupFacts, LetterFacts, PipelineFacts, Snapshot, TopicFacts
from penstock.observe.groups import GroupObserver
from penstock.observe.letters import LetterCounting
from penstock.observe.library_groups import LibraryGroups, default_store
from penstock.observe.pipelines import find_pipelines, pipelines_folder
from penstock.observe.topics import TopicObserver
from penstock.streams import Connection
from penstock.streams.url import is_memory

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
"""How long the stream may take over an answer."""
READ_S: Final = 3.0
"""How long a look waits for the records that it reads for their timestamps."""
_REACHED_S: Final = 2.0
"""How long the broker may take to accept a connection."""


class StreamObserver:
    """Takes snapshots of a system. Used by one thread at a time.

    `checkpoints` is the store of the library's groups, as given to a consumer; without it, the stores that consumers
    use by default, if they exist. `dead_letters` are stores beside the topics that end in `.dlq`. `pipelines` is the
    folder of their checkpoints: beside an embedded log's records, or else in the working folder. `timeout_s` limits
    the wait for a broker that does not answer.
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
        self._topics = TopicObserver(self._clock)
        self._groups = GroupObserver()
        self._library = LibraryGroups(checkpoints, self._clock)
        self._letters = LetterCounting(dead_letters, self._clock)
        self._captures = CaptureObserver()
        self._times: RecordTimes | None = None
        self._connection: Connection | None = None
        self._is_counted = self._has_groups = self._has_store = True
        self._is_store_given = checkpoints is not None
        self._last = Snapshot(self._clock.wall_ms(), problem="there was no look yet")
        if connection is not None:
            self.use(connection)

    def use(self, connection: Connection) -> None:
        """Use this connection from now on. The known facts are kept: it is the same stream."""
        if is_memory(connection.url):
            raise ConfigError(f"{connection.url} has no topics to look at: use a log: or kafka: URL")
        if self._times is not None:
            self._times.close()
        survey = connection.survey(self._timeout_s)
        self._connection = connection
        self._times = connection.record_times()
        self._is_counted = Feature.OFFSETS in connection.features
        self._has_groups = Feature.GROUPS in connection.features
        self._has_store = self._is_store_given or default_store(connection) is not None
        self._topics.use(survey, self._sizes, is_counted=self._is_counted)
        self._groups.use(survey)
        self._library.use(connection)
        self._letters.use(connection)
        self._captures.use(connection)

    def look(self) -> Snapshot:
        """A snapshot; the last known facts, with `problem` set, when the stream cannot be asked. Never raises one of
        the library's errors."""
        begun_s, at_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        letters: Mapping[str, LetterFacts]
        try:
            topics, groups = self._look_at_stream(at_ms)
            letters = self._letters.look(topics)
            captures = self._captures.look(topics, at_ms)
            problem = None
        except PenstockError as error:
            topics, groups = dict(self._last.topics), dict(self._last.groups)
            letters = {**self._last.letters, **self._letters.look_elsewhere()}
            captures = self._captures.known(at_ms)
            problem = str(error)
        self._last = Snapshot(
            at_ms,
            topics,
            groups,
            letters,
            self._look_at_pipelines(),
            problem,
            took_s=self._clock.monotonic_s() - begun_s,
            is_counted=self._is_counted,
            has_groups=self._has_groups,
            has_store=self._has_store,
            captures=captures,
        )
        return self._last

    def failed(self, problem: str) -> Snapshot:
        """The last known facts, with this problem: for a caller that could not even connect."""
        self._last = dataclasses.replace(
            self._last,
            at_ms=self._clock.wall_ms(),
            letters={**self._last.letters, **self._letters.look_elsewhere()},
            pipelines=self._look_at_pipelines(),
            captures=self._captures.known(self._clock.wall_ms()),
            problem=problem,
            took_s=0.0,
        )
        return self._last

    def close(self) -> None:
        """Close what was opened here, but not the connection."""
        self._library.close()
        self._letters.close()
        if self._times is not None:
            self._times.close()

    def _look_at_stream(self, at_ms: int) -> tuple[dict[str, TopicFacts], dict[str, GroupFacts]]:
        if self._connection is None:
            raise BrokerUnavailableError("there is no connection to the stream")
        self._connection.check_there(_REACHED_S)  # fail fast, instead of waiting as for a slow broker
        topics = self._topics.look(at_ms, self._groups.read)
        library = self._library.look(self._topics.ends)
        groups = self._groups.look(at_ms, topics, self._topics, library, self._read)
        return topics, groups

    def _read(self, pointers: Mapping[PartitionId, int]) -> Mapping[PartitionId, RecordTime | None]:
        assert self._times is not None
        try:
            return self._times.first_from(pointers, READ_S)
        except PenstockError as error:
            logger.info("the times of %d records are unknown: %s", len(pointers), error)
            return {}

    def _sizes(self) -> dict[PartitionId, int] | None:
        """The size of each partition in bytes. None if this user may not ask for it."""
        assert self._connection is not None
        try:
            return dict(self._connection.admin().sizes())
        except StreamError as error:
            logger.info("%s", error)
            return None

    def _look_at_pipelines(self) -> dict[str, PipelineFacts]:
        url = self._connection.url if self._connection is not None else None
        return find_pipelines(self._pipelines if self._pipelines is not None else pipelines_folder(url))
