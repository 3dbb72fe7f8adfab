"""What a query reads and writes, as `penstock.abc.Lineage` is told."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.abc import Dataset
from penstock.lakes.table import LakeTable
from penstock.spark.run.plans import PlannedSource
from penstock.spark.sink.folders.folder import Folder
from penstock.spark.sink.folders.lake import LakeTarget
from penstock.spark.sink.sql.table import SqlTable
from penstock.spark.sink.target import Target
from penstock.spark.sink.topic import TopicTarget
from penstock.streams.datasets import file_dataset, table_dataset, topic_dataset, url_dataset
from penstock.streams.url import without_password


class QueryInputs:
    """The topics that a query reads: those of its plan, and those that matched a pattern, once progress names them."""

    def __init__(
        self, planned: Sequence[PlannedSource], url: str, addresses: Iterable[str], queues: Mapping[str, str]
    ) -> None:
        """`addresses` name the pipeline's own stream, whose URL is `url`; `queues` has, by the URL of the log of its
        spool, the URL of each queue that is read."""
        self._planned = planned
        self._urls = dict.fromkeys(addresses, url)
        self._queues = queues
        self.has_patterns = any(source.address is not None and not source.topics for source in planned)

    def datasets(self, reported: Sequence[Mapping[str, Any]] = ()) -> list[Dataset]:
        """`reported` are the sources of the query's progress."""
        found: set[Dataset] = set()
        ends = [each["end"] or {} for each in reported] if len(reported) == len(self._planned) else []
        for number, source in enumerate(self._planned):
            if source.address is None:
                continue
            if source.address in self._queues:
                found.add(url_dataset(self._queues[source.address]))
                continue
            url = self._urls.get(without_password(source.address)) or _with_scheme(source.address)
            topics = set(source.topics)
            if not topics and ends:
                topics = {topic for place in ends[number] if (topic := place.rpartition("/")[0])}
            found.update(topic_dataset(url, topic) for topic in topics)
        return sorted(found)


def written(targets: Iterable[Target]) -> list[Dataset]:
    """The datasets of targets. Functions, and topics that each row names itself, have none."""
    return sorted({found for target in targets if (found := _dataset(target)) is not None})


def _dataset(target: Target) -> Dataset | None:
    if isinstance(target, TopicTarget):
        return None if target.name is None else topic_dataset(target.url, target.name)
    if isinstance(target, SqlTable):
        return table_dataset(target.url, target.table)
    if isinstance(target, Folder):
        return file_dataset(target.path)
    return _lake_dataset(target.table) if isinstance(target, LakeTarget) else None


def _lake_dataset(table: LakeTable) -> Dataset:
    """The folder of the table, or the table of a catalog."""
    place = table.uri.partition(":")[2]
    if table.is_delta:
        return file_dataset(place)
    folder, _, name = place.rpartition("#")
    if folder:
        return file_dataset(os.path.join(folder, *name.split(".")))
    uri = table.catalog.get("uri") if isinstance(table.catalog, Mapping) else table.catalog
    return Dataset(without_password(uri) if isinstance(uri, str) else "iceberg", name)


def _with_scheme(address: str) -> str:
    """The address of a stream as a URL: Spark's Kafka connector names brokers, without a scheme."""
    return address if "/" in address else f"kafka://{address}"
