"""The streaming reader: admission control, expired records, new partitions, and what Spark is told about progress.

Spark keeps one of these for a query, in a Python process beside the driver; that one is connected. Copies of it go to
the tasks, which only `read`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import TopicReplacedError, UnknownTopicError
from penstock.spark.source.admission import within_bytes, within_records
from penstock.spark.source.chosen_pointers import FAIL, chosen_pointers, without_expired
from penstock.spark.source.decoded import decoded
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.origin import Range, TaskInput
from penstock.spark.source.positions import Pointers
from penstock.spark.source.progress import Progress
from penstock.spark.source.sizes import Sizes
from penstock.spark.source.splitting import split
from penstock.spark.source.task_reading import WHAT_TO_DO, read_range
from penstock.spark.source.topic_view import Described, Partitions, TopicView, open_topic


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._view: TopicView | None = None
        self._partitions: Partitions | None = None
        self._sizes: Sizes | None = None
        self._has_been_there = False
        self._target: Pointers | None = None
        """Where a run that takes what is there ends."""
        self._latest: Progress | None = None
        self._turn = 0

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins. It is marked as such by saying so itself: `@from` is all of it."""
        view, described = self._look(fresh=True)
        options = self._options
        pointers = chosen_pointers(view, options.topic, described, options.start, "startingPosition")
        return Progress(options.topic, pointers, described.topic_id, pointers).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        view, described = self._look(fresh=True)
        self._target = self._ends(view, described)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        view, described = self._look()
        before = Progress.from_json(self._options.topic, start)
        self._check_same_topic(before, described)
        ends = self._ends(view, described)
        self._latest = Progress(self._options.topic, ends)
        self._check_not_back(before.pointers, ends)
        begin = {**{each: view.first_pointer(each) for each in ends.keys() - before.pointers.keys()}, **before.pointers}
        if self._target is not None:
            # What came later, partitions too, is left for the next run.
            begin = {partition: pointer for partition, pointer in begin.items() if partition in self._target}
            ends = {each: max(begin[each], min(ends[each], self._target[each])) for each in begin}
        is_first = before.begun == before.pointers
        if begin == before.pointers == ends:
            return self._nothing_new(start, before, is_first)
        # The ends are those of the topic that was looked up a moment ago, if it still is the same.
        self._check_same_topic(before, self._look(fresh=True)[1])
        lenient = is_first and self._options.start.lower() == "earliest"
        policy = "earliest" if lenient else self._options.on_expired
        begin = without_expired(view, self._options.topic, begin, ends, policy)
        reached = self._admitted(begin, ends, limit)
        moved = begin if is_first else {each: begin[each] for each in begin if begin[each] != before.pointers.get(each)}
        return Progress(self._options.topic, reached, described.topic_id, moved).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        view, described = self._look()
        before = Progress.from_json(self._options.topic, start)
        after = Progress.from_json(self._options.topic, end)
        self._check_same_topic(after, described)
        begin = {**before.pointers, **after.begun}
        ranges = [Range(each, min(begin[each], pointer), pointer) for each, pointer in sorted(after.pointers.items())]
        origin = view.origin()
        return [TaskInput(origin, share) for share in split(ranges, self._options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskInput)
        skip = self._options.on_expired != FAIL
        rows = (
            batch
            for each in partition.ranges
            for batch in read_range(partition.origin, each, self._options.columns, skip_expired=skip)
        )
        return decoded(rows, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint is Spark's, and there is nobody else to tell."""

    def stop(self) -> None:
        if self._sizes is not None:
            self._sizes.close()
        if self._view is not None:
            self._view.close()
        self._view = self._partitions = self._sizes = None

    def _look(self, *, fresh: bool = False) -> tuple[TopicView, Described]:
        """The connected topic, and what partitions it has."""
        if self._view is None or self._partitions is None:
            self._view = open_topic(self._options.url, self._options.topic, self._options.client)
            self._partitions = Partitions(self._view)
        with self._expecting_the_topic():
            described = self._partitions.now(fresh=fresh)
        self._has_been_there = True
        return self._view, described

    def _ends(self, view: TopicView, described: Described) -> Pointers:
        with self._expecting_the_topic():
            return view.ends(described.partitions)

    @contextmanager
    def _expecting_the_topic(self) -> Iterator[None]:
        try:
            yield
        except UnknownTopicError as error:
            if not self._has_been_there:
                raise
            raise TopicReplacedError(f"topic {self._options.topic!r} is gone: it was deleted. {WHAT_TO_DO}") from error

    def _nothing_new(self, start: dict[str, Any], before: Progress, is_first: bool) -> dict[str, Any]:
        """Spark begins no batch where nothing has changed, and so remembers nothing.

        A query that began at the end, or at a time, is to go on from there when it is started again: this takes a first
        batch without records.
        """
        if is_first and self._options.start.lower() != "earliest":
            return Progress(before.topic, before.pointers, before.topic_id).to_json()
        return start

    def _admitted(self, begin: Pointers, ends: Pointers, limit: ReadLimit) -> Pointers:
        """Where the batch ends. Both limits hold where both were given, but Spark knows of one, and may want none."""
        if isinstance(limit, ReadAllAvailable):
            return ends
        self._turn += 1
        if self._options.max_bytes is not None:
            if self._sizes is None:
                assert self._view is not None
                self._sizes = Sizes(self._view.origin())
            ends = within_bytes(begin, ends, self._options.max_bytes, self._sizes.sized, self._turn)
        if self._options.max_records is not None:
            ends = within_records(begin, ends, self._options.max_records, self._turn)
        return ends

    def _check_same_topic(self, known: Progress, described: Described) -> None:
        topic = self._options.topic
        if known.topic_id is not None and described.topic_id is not None and known.topic_id != described.topic_id:
            raise TopicReplacedError(f"topic {topic!r} is not the one that this query has read so far. {WHAT_TO_DO}")
        missing = known.pointers.keys() - set(described.partitions)
        if missing:
            raise TopicReplacedError(f"topic {topic!r} has no partition {min(missing)} any more. {WHAT_TO_DO}")

    def _check_not_back(self, reached: Pointers, ends: Pointers) -> None:
        for partition, pointer in reached.items():
            if ends[partition] < pointer:
                raise TopicReplacedError(
                    f"topic {self._options.topic!r}, partition {partition}: this query has read up to {pointer}, and "
                    f"now the partition ends at {ends[partition]}. {WHAT_TO_DO}"
                )
