"""The files of a gate: what was late in a batch, and which watermark each batch is judged by.

Below the folder of one gate in one query:

    watermarks.json               the batches from which on a watermark holds, for the last hundred of its changes
    late/BATCH/RUN/FILE.arrow     the late rows of one partition
    late/BATCH/RUN/FILE.json      how many there are, and the latest event time; once it is there, the rows are whole

FILE names stage, partition, attempt and a number of its own. A frame may be evaluated more than once in a batch, by
tasks that are cut in other ways each time; a task may be tried again, or take several partitions one after the other.
So nothing can be replaced in place: whoever reads chooses one evaluation that is whole, by counting.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from penstock.errors import ConfigError, PipelineError

_WATERMARKS: Final = "watermarks.json"
_KEPT_CHANGES: Final = 100
"""As many batches as Spark keeps of a checkpoint, by which somebody may set it back."""
_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")
_COMPACT: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_HADOOP_NAMES: Final = {"s3a": "s3", "s3n": "s3"}


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Which task writes."""

    run: str
    stage: int
    partition: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Held:
    """What a gate held back of one partition, and how far event time came in it."""

    late: int
    without_time: int
    latest_us: int | None
    rows: str | None
    """The file with the late rows, if there are any."""


class GateFiles:
    """The files of one gate in one query, for the driver and for tasks."""

    def __init__(self, side: str, query_id: str, gate: str) -> None:
        self._system, root = filesystem_of(side)
        self._folder = f"{root}/{query_id}/{gate}"

    def watermarks(self) -> dict[int, int]:
        """From which batch on which watermark holds, in milliseconds. Empty when no batch was finished yet."""
        text = self._read(f"{self._folder}/{_WATERMARKS}")
        if text is None:
            return {}
        try:
            return {int(batch): int(watermark_ms) for batch, watermark_ms in json.loads(text).items()}
        except (ValueError, AttributeError) as error:
            raise PipelineError(
                f"{self._folder}/{_WATERMARKS} is damaged ({error}), so nobody can say which rows are late: restore it,"
                " or start the pipeline with a new checkpoint"
            ) from error

    def write_watermarks(self, watermarks: Mapping[int, int]) -> None:
        kept = sorted(watermarks.items())[-_KEPT_CHANGES:]
        self._replace(f"{self._folder}/{_WATERMARKS}", json.dumps({str(batch): at for batch, at in kept}))

    def holding(self, batch_id: int, place: TaskPlace, schema: pa.Schema) -> Holding:
        return Holding(self._system, f"{self._folder}/late/{batch_id}/{place.run}", place, schema)

    def held(self, batch_id: int, run: str) -> Sequence[Held]:
        """What was held back in a batch, each row once.

        In this run, or, if it has not evaluated the batch because its target had it all already, in the run before.
        """
        by_run: dict[str, dict[int, dict[int, dict[int, list[str]]]]] = {}
        for folder in self._names(f"{self._folder}/late/{batch_id}"):
            evaluations: dict[int, dict[int, dict[int, list[str]]]] = defaultdict(
                lambda: defaultdict(lambda: defaultdict(list))
            )
            for name in self._names(f"{self._folder}/late/{batch_id}/{folder}"):
                if name.endswith(".json"):
                    stage, partition, attempt, _ = name.split("-", 3)
                    path = f"{self._folder}/late/{batch_id}/{folder}/{name}"
                    evaluations[int(stage)][int(partition)][int(attempt)].append(path)
            if evaluations:
                by_run[folder] = evaluations
        runs = [by_run[run]] if run in by_run else [by_run[folder] for folder in sorted(by_run)]
        whole = [_most_of_each(evaluation) for evaluations in runs for _, evaluation in sorted(evaluations.items())]
        return [self._held_in(path) for path in max(whole, key=len, default=[])]

    def latest_us(self, batch_id: int) -> int | None:
        """The latest event time in a batch, whoever saw it: every evaluation of a batch has the same rows."""
        here = f"{self._folder}/late/{batch_id}"
        paths = [f"{here}/{run}/{name}" for run in self._names(here) for name in self._names(f"{here}/{run}")]
        found = [self._held_in(path).latest_us for path in paths if path.endswith(".json")]
        return max((at_us for at_us in found if at_us is not None), default=None)

    def forget(self, batch_id: int) -> None:
        """Remove what was held back up to this batch."""
        for name in self._names(f"{self._folder}/late"):
            if int(name) <= batch_id:
                self._system.delete_dir(f"{self._folder}/late/{name}")

    def _held_in(self, path: str) -> Held:
        text = self._read(path)
        if text is None:
            raise PipelineError(f"{path} was removed while its batch was under way: does the pipeline run twice?")
        found = json.loads(text)
        rows = path.removesuffix(".json") + ".arrow" if found["late"] else None
        return Held(found["late"], found["without_time"], found["latest_us"], rows)

    def _names(self, folder: str) -> list[str]:
        return [info.base_name for info in self._system.get_file_info(fs.FileSelector(folder, allow_not_found=True))]

    def _read(self, path: str) -> str | None:
        try:
            with self._system.open_input_stream(path) as stream:
                return bytes(stream.read()).decode("utf-8")
        except FileNotFoundError:
            return None

    def _replace(self, path: str, text: str) -> None:
        write_whole(self._system, path, text)


class Holding:
    """The rows that one task holds back. They count once `finish` has returned."""

    def __init__(self, system: fs.FileSystem, folder: str, place: TaskPlace, schema: pa.Schema) -> None:
        name = f"{place.stage}-{place.partition}-{place.attempt}-{uuid.uuid4().hex}"
        self._system = system
        self._folder = folder
        self._path = f"{folder}/{name}"
        self._schema = schema
        self._writer: Any = None
        self._stream: Any = None
        self._late = 0
        self._without_time = 0
        self._finished = False

    def add(self, rows: pa.RecordBatch, without_time: int) -> None:
        if self._writer is None:
            self._system.create_dir(self._folder, recursive=True)
            self._stream = self._system.open_output_stream(f"{self._path}.arrow")
            self._writer = pa.ipc.new_file(self._stream, self._schema, options=_COMPACT)
        self._writer.write_batch(rows)
        self._late += rows.num_rows
        self._without_time += without_time

    def finish(self, latest_us: int | None) -> None:
        self._close()
        found = {"late": self._late, "without_time": self._without_time, "latest_us": latest_us}
        write_whole(self._system, f"{self._path}.json", json.dumps(found))
        self._finished = True

    def abandon(self) -> None:
        """Leave nothing behind, unless it was finished: the task failed, or nobody wants the rest of its rows."""
        if not self._finished and self._writer is not None:
            self._close()
            self._system.delete_file(f"{self._path}.arrow")

    def _close(self) -> None:
        if self._stream is not None:
            self._writer.close()
            self._stream.close()
            self._stream = None


def read_held(path: str, side: str) -> pa.RecordBatchFileReader:
    """The late rows of one file, where `side` says on which file system it is."""
    system, _ = filesystem_of(side)
    return pa.ipc.open_file(system.open_input_file(path))


def rooted(folder: str) -> str:
    """The folder by a name that leads to it from anywhere: tasks run elsewhere than the driver."""
    return folder if _SCHEME.match(folder) else os.path.abspath(folder.removeprefix("file:"))


def filesystem_of(folder: str) -> tuple[fs.FileSystem, str]:
    """Where a folder is, and what it is called there. It is reached the same way from the driver and from tasks."""
    scheme = _SCHEME.match(folder)
    if scheme is None:
        return fs.LocalFileSystem(), folder
    name = scheme.group(1).lower()
    url = f"{_HADOOP_NAMES.get(name, name)}://{folder[scheme.end() :]}"
    try:
        system, root = fs.FileSystem.from_uri(url)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise ConfigError(
            f"late rows cannot be kept in {folder}: {error}. Give the pipeline a checkpoint folder that pyarrow reaches"
            " too, such as a shared folder, s3a://, gs://, abfss:// or hdfs://"
        ) from error
    return system, root.rstrip("/")


def write_whole(system: fs.FileSystem, path: str, text: str) -> None:
    """Readers find what was there before, or this text."""
    folder, _, name = path.rpartition("/")
    beside = f"{folder}/.{name}.{uuid.uuid4().hex}"
    try:
        stream = system.open_output_stream(beside)
    except FileNotFoundError:
        system.create_dir(folder, recursive=True)
        stream = system.open_output_stream(beside)
    with stream:
        stream.write(text.encode("utf-8"))
    system.move(beside, path)


def _most_of_each(evaluation: Mapping[int, Mapping[int, Sequence[str]]]) -> list[str]:
    """For each partition the attempt that got furthest: one that was cut short has fewer files than a whole one."""
    return [path for attempts in evaluation.values() for path in max(attempts.values(), key=len)]
