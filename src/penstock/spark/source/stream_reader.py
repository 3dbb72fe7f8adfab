"""The streaming reader: limits of batches, expired records, new partitions, and the offsets in the checkpoint.

Spark keeps one reader per query in a Python process beside the driver; only that one connects to plan batches. Tasks
get copies of it and only call `read`.

An offset in the checkpoint is JSON:

    {"orders": {"0": 17, "1": 4}, "@id": "...", "@from": {"1": 0}}
    {"orders": {"0": 17}, "returns": {"0": 9}, "@id": {"orders": "..."}, "@from": {"returns": {"0": 0}}}

The pointers say where the next batch begins. `@id` distinguishes a topic from another one of the same name. `@from` is
present in the end of a batch that did not begin where the previous one ended: a first batch, one with new partitions or
topics, one that skipped expired records. Spark does not store where a first batch began, and would ask again after a
crash; with `@from`, a repeated batch has the same records. The second form is used unless there is exactly one topic.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.abc import Feature
from penstock.errors import (
    CheckpointMismatchError,
    ConfigError,
    RecordsLostError,
    TopicReplacedError,
    UnknownTopicError,
)
from penstock.log.reader import PartitionReader
from penstock.model import Batch
from penstock.model.administration import PartitionId
from penstock.spark.source.admission import Admission, record_bytes, within_counted
from penstock.spark.source.origin import Origin, Range, TaskInput, split, whole_partitions
from penstock.spark.source.position_lookup import FAIL, resolve_position, skip_expired_records
from penstock.spark.source.positions import UNCOUNTED, Pointers, by_partition, by_topic
from penstock.spark.source.read_options import SourceOptions, decoded
from penstock.spark.source.task_reading import WHAT_TO_DO, open_topic_at, read_range, read_records
from penstock.spark.source.topic_view import Described, TopicView, open_topics

logger = logging.getLogger(__name__)

LOOK_FOR_PARTITIONS_S: Final = 1.0
"""New partitions and topics are noticed within this time."""


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._view: TopicView | None = None
        self._described: Described | None = None
        self._described_s = 0.0
        """When the partitions were looked up."""
        self._sizes: RecordSizes | None = None
        self._has_been_there = False
        self._target: Pointers | None = None
        """The end of a run with trigger availableNow."""
        self._latest: SourceOffset | None = None
        self._admission: Admission | None = None
        self._turn = 0
        self._dropped: set[str] = set()
        """Topics of the checkpoint that are not selected any more, which was logged."""

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins. Its `@from` contains all pointers, which marks it as initial."""
        view, described = self._look(fresh=True)
        pointers = resolve_position(view, described, self._options.start, "startingPosition")
        return SourceOffset(pointers, described.topic_ids, pointers).to_json()

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
        stored = self._stored(start)
        is_first = stored.begun == stored.pointers
        before = self._without_gone(stored, described)
        ends = self._ends(view, described)
        if not before.pointers.keys() <= ends.keys():
            return start  # a topic was deleted just now: the next look reports it
        self._latest = SourceOffset(ends)
        self._check_not_back(before.pointers, ends)
        begin = {**{each: view.first_pointer(each) for each in ends.keys() - before.pointers.keys()}, **before.pointers}
        begin = {each: begin[each] for each in ends}
        if self._target is not None:
            # Later records, partitions and topics are left for the next run.
            begin = {partition: pointer for partition, pointer in begin.items() if partition in self._target}
            ends = {each: max(begin[each], min(ends[each], self._target[each])) for each in begin}
        if begin == stored.pointers == ends:
            return self._nothing_new(start, stored, is_first)
        # A topic may have been replaced since it was looked up, and the ends belong to the new one.
        now = self._look(fresh=True)[1]
        if self._is_one_with_offsets:
            self._check_same_topic(stored, now)
        elif self._gone(SourceOffset(ends, self._ids(described, ends)), now):
            return start
        lenient = is_first and self._options.start.lower() == "earliest"
        policy = "earliest" if lenient else self._options.on_expired
        begin = skip_expired_records(view, begin, ends, policy)
        reached = self._admitted(begin, ends, limit)
        moved = begin if is_first else {each: begin[each] for each in begin if begin[each] != before.pointers.get(each)}
        if reached == stored.pointers and not moved:
            return start
        return SourceOffset(reached, self._ids(described, reached), moved).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._latest is None:
            return None
        told = self._latest.to_json()
        if self._view is not None and Feature.OFFSETS not in self._view.features:
            told[UNCOUNTED] = True
        return told

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        view, described = self._look()
        stored, after = self._stored(start), self._stored(end)
        begin = {**stored.pointers, **after.begun}
        ranges = [Range(*each, min(begin[each], it), it) for each, it in sorted(after.pointers.items())]
        if self._is_one_with_offsets:
            self._check_same_topic(after, described)
        else:
            gone = self._gone(after, described)
            for each in ranges:
                if (each.topic, each.partition) in gone and each.end > each.start:
                    self._report_gone((each.topic, each.partition), each.start, is_lost=True)
            ranges = [each for each in ranges if (each.topic, each.partition) not in gone]
        origin = view.origin()
        parts = (split if origin.has_offsets else whole_partitions)(ranges, self._options.tasks)
        return [TaskInput(origin, part) for part in parts]

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
        """Nothing to do: Spark keeps the checkpoint."""

    def stop(self) -> None:
        if self._sizes is not None:
            self._sizes.close()
        if self._view is not None:
            self._view.close()
        self._view = self._described = self._sizes = self._admission = None

    def _look(self, *, fresh: bool = False) -> tuple[TopicView, Described]:
        if self._view is None:
            self._view = open_topics(self._options.url, self._options.selection, self._options.client)
        if fresh or self._described is None or time.monotonic() - self._described_s >= LOOK_FOR_PARTITIONS_S:
            with self._expecting_the_topic():
                self._described = self._view.describe()
            self._described_s = time.monotonic()
        self._has_been_there = True
        return self._view, self._described

    def _ends(self, view: TopicView, described: Described) -> Pointers:
        with self._expecting_the_topic():
            try:
                return view.ends(described.partitions)
            except UnknownTopicError:  # one of several may have been deleted since they were listed
                return view.ends(self._look(fresh=True)[1].partitions)

    @contextmanager
    def _expecting_the_topic(self) -> Iterator[None]:
        try:
            yield
        except UnknownTopicError as error:
            if not self._has_been_there:
                raise
            raise TopicReplacedError(f"{self._options.selection} was deleted. {WHAT_TO_DO}") from error

    def _nothing_new(self, start: dict[str, Any], before: SourceOffset, is_first: bool) -> dict[str, Any]:
        """The end of a batch without new records.

        Spark skips a batch whose offset has not changed, and stores nothing. A query that began at the end, or at a
        time, must continue from there after a restart, so its first batch is an empty one.
        """
        if is_first and self._options.start.lower() != "earliest":
            return SourceOffset(before.pointers, before.topic_ids).to_json()
        return start

    def _admitted(self, begin: Pointers, ends: Pointers, limit: ReadLimit) -> Pointers:
        """The end of the batch. If both limits are set, both apply, though Spark passes only one of them."""
        if isinstance(limit, ReadAllAvailable):
            return ends
        assert self._view is not None
        if Feature.OFFSETS not in self._view.features:
            return self._counted(self._view.origin(), begin, ends)
        if self._sizes is None:
            self._sizes = RecordSizes(self._view.origin())
        if self._admission is None:
            at_time = self._view.at_time()
            if at_time is None and self._options.alignment == "timestamp":
                raise ConfigError(f"partitions cannot be aligned by time: the stream has no {Feature.TIMES}")
            self._admission = Admission(self._options.alignment, at_time, self._sizes.time_of)
        with self._expecting_the_topic():
            return self._admission.within(
                begin,
                ends,
                max_records=self._options.max_records,
                max_bytes=self._options.max_bytes,
                sized=self._sizes.sized,
            )

    def _counted(self, origin: Origin, begin: Pointers, ends: Pointers) -> Pointers:
        at_once = min(_READ_AHEAD, self._options.max_records or _READ_AHEAD)
        skip = self._options.on_expired != FAIL
        self._turn += 1
        with self._expecting_the_topic():
            return within_counted(
                begin,
                ends,
                max_records=self._options.max_records,
                max_bytes=self._options.max_bytes,
                records=lambda each, first, end: read_records(
                    origin, Range(*each, first, end), at_once, skip_expired=skip
                ),
                by_time=self._options.alignment == "timestamp",
                turn=self._turn,
            )

    def _stored(self, written: dict[str, Any]) -> SourceOffset:
        """An offset of the checkpoint, without topics that are not selected any more."""
        selection = self._options.selection
        offset = SourceOffset.from_json(written)
        topics = {topic for topic, _ in offset.pointers} | {name for name in written if not name.startswith("@")}
        dropped = {topic for topic in topics if topic not in selection}
        if (topics or selection.is_single) and dropped == topics:
            others = ", ".join(map(repr, sorted(topics))) or "nothing"
            raise CheckpointMismatchError(
                f"this checkpoint belongs to {others}, not to {selection}: choose another checkpointLocation, or what "
                "it belongs to"
            )
        for topic in sorted(dropped - self._dropped):
            logger.warning("topic %r is not read any more: the query now reads %s", topic, selection)
        self._dropped |= dropped
        return offset.without({each for each in offset.pointers if each[0] in dropped})

    def _without_gone(self, known: SourceOffset, described: Described) -> SourceOffset:
        """The offset without partitions that do not exist any more.

        A single topic with offsets never loses partitions: if it has, it is another topic. Topics of several may be
        deleted, and streams such as Kinesis retire partitions: that is reported, and an error if records were lost.
        """
        if self._is_one_with_offsets:
            self._check_same_topic(known, described)
            return known
        gone = self._gone(known, described)
        for each in sorted(gone):
            reached = known.pointers[each]
            latest = self._latest.pointers.get(each) if self._latest is not None else None
            self._report_gone(each, reached, is_lost=latest is None or latest > reached)
        return known.without(gone)

    @property
    def _is_one_with_offsets(self) -> bool:
        return self._options.selection.is_single and self._view is not None and Feature.OFFSETS in self._view.features

    def _gone(self, known: SourceOffset, described: Described) -> set[PartitionId]:
        replaced = {topic for topic, id in known.topic_ids.items() if described.topic_ids.get(topic, id) != id}
        there = set(described.partitions)
        return {each for each in known.pointers if each not in there or each[0] in replaced}

    def _report_gone(self, which: PartitionId, reached: int, *, is_lost: bool) -> None:
        topic, partition = which
        if not is_lost:
            logger.warning("topic %r, partition %d does not exist any more; everything in it was read", *which)
        elif self._options.on_expired == FAIL:
            raise RecordsLostError(
                f"topic {topic!r}, partition {partition} does not exist any more, and records from pointer {reached} "
                'on may not have been read. To continue without them, set on_expired="earliest" (the option onExpired)'
            )
        else:
            logger.warning(
                "topic %r, partition %d does not exist any more; records from %d on may not have been read",
                *which,
                reached,
            )

    def _ids(self, described: Described, pointers: Pointers) -> dict[str, str]:
        topics = {topic for topic, _ in pointers}
        return {topic: id for topic, id in described.topic_ids.items() if topic in topics}

    def _check_same_topic(self, known: SourceOffset, described: Described) -> None:
        for topic, id in known.topic_ids.items():
            if described.topic_ids.get(topic, id) != id:
                raise TopicReplacedError(
                    f"topic {topic!r} is not the topic that this query has read so far. {WHAT_TO_DO}"
                )
        missing = known.pointers.keys() - set(described.partitions)
        if missing:
            topic, partition = min(missing)
            raise TopicReplacedError(f"topic {topic!r} no longer has partition {partition}. {WHAT_TO_DO}")

    def _check_not_back(self, reached: Pointers, ends: Pointers) -> None:
        for (topic, partition), pointer in reached.items():
            if ends.get((topic, partition), pointer) < pointer:
                raise TopicReplacedError(
                    f"topic {topic!r}, partition {partition}: this query has read up to {pointer}, but the partition "
                    f"now ends at {ends[topic, partition]}. {WHAT_TO_DO}"
                )


_ID: Final = "@id"
_FROM: Final = "@from"
_READ_AHEAD: Final = 500
"""How many records of a partition are read at once to find the end of a limited batch."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    pointers: Pointers
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    begun: Pointers = field(default_factory=dict)
    """Where the batch that ends here began, for partitions in which that is not the end of the previous batch."""

    def without(self, partitions: Set[PartitionId]) -> SourceOffset:
        """The same without these partitions."""
        if not partitions:
            return self
        pointers = {each: pointer for each, pointer in self.pointers.items() if each not in partitions}
        topics = {topic for topic, _ in pointers}
        return SourceOffset(
            pointers,
            {topic: id for topic, id in self.topic_ids.items() if topic in topics},
            {each: pointer for each, pointer in self.begun.items() if each not in partitions},
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON form, in a fixed order: Spark compares texts."""
        written: dict[str, Any] = by_topic(self.pointers)
        ids, begun = dict(sorted(self.topic_ids.items())), by_topic(self.begun)
        if len(written) == 1:
            [topic] = written
            if ids:
                written[_ID] = ids[topic]
            if begun:
                written[_FROM] = begun[topic]
            return written
        return {**written, **({_ID: ids} if ids else {}), **({_FROM: begun} if begun else {})}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> SourceOffset:
        by_topic = {name: pointers for name, pointers in written.items() if not name.startswith("@")}
        ids, begun = written.get(_ID) or {}, written.get(_FROM) or {}
        if len(by_topic) == 1:
            [topic] = by_topic
            ids = {topic: ids} if isinstance(ids, str) else ids
            begun = begun if all(isinstance(each, Mapping) for each in begun.values()) else {topic: begun}
        return cls(by_partition(by_topic), ids, by_partition(begun))


_SAMPLE: Final = 200
_WAIT_S: Final = 1.0


class RecordSizes:
    """Sizes and timestamps of records, for limited batches: from the index of a log's files, or by a sample."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._files: dict[PartitionId, PartitionReader] = {}
        self._sampled: dict[PartitionId, tuple[int, int, float]] = {}
        """For each partition, where the last sample was taken, its first pointer, and the mean size of its records."""

    def sized(self, partition: PartitionId, begin: int, end: int, size_bytes: int) -> tuple[int, int]:
        """See `penstock.spark.source.admission.Sized`."""
        folder = self._origin.folder
        if folder is not None and folder.is_here():
            if partition not in self._files:
                self._files[partition] = PartitionReader(Path(folder.path) / "-".join(map(str, partition)))
            return self._files[partition].offset_after(begin, size_bytes, end)
        sample = self._sample(partition, begin, end)
        if sample is None:
            return end, 0
        first, mean_bytes = sample
        count = min(end - begin, max(1, int(size_bytes / mean_bytes)))
        return max(begin + count, min(first + 1, end)), round(count * mean_bytes)

    def _sample(self, partition: PartitionId, begin: int, end: int) -> tuple[int, float] | None:
        known = self._sampled.get(partition)
        if known is None or known[0] != begin:
            sample = self._read(partition, begin, min(_SAMPLE, end - begin))
            if not sample:
                return None
            known = begin, sample[0].offset, sum(map(record_bytes, sample)) / len(sample)
            self._sampled[partition] = known
        return known[1], known[2]

    def time_of(self, partition: PartitionId, pointer: int) -> int | None:
        """See `penstock.spark.source.admission.TimeOf`."""
        found = self._read(partition, pointer, 1)
        return found[0].timestamp_ms if found else None

    def _read(self, partition: PartitionId, start: int, limit: int) -> Batch:
        return open_topic_at(self._origin, partition[0]).read(partition[1], start, limit, _WAIT_S)

    def close(self) -> None:
        for reader in self._files.values():
            reader.close()
        self._files.clear()
