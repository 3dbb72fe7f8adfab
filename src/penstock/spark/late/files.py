"""The files of a gate: the late rows of each batch, and the watermarks of batches.

In the folder of one gate in one query:

    watermarks.json               the first batch of each watermark, for the last hundred changes
    late/BATCH/RUN/FILE.arrow     the late rows of one partition
    late/BATCH/RUN/FILE.json      their number and the latest event time; written last, when the rows are complete

FILE contains stage, partition, attempt and a unique id. Spark may evaluate a frame several times in a batch, with other
partitions each time; a task may be retried, or process several partitions. So files are never replaced, and readers
choose one complete evaluation by counting its files.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from penstock.errors import PipelineError
from penstock.spark.sink.file_systems import opened

_WATERMARKS: Final = "watermarks.json"
_KEPT_CHANGES: Final = 100
"""The number of batches that Spark keeps in a checkpoint, so that a checkpoint can be reset to any of them."""
_COMPACT: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """The task attempt that writes."""

    run: str
    stage: int
    partition: int
    attempt: int


@dataclass(frozen=True, slots=True)
class LateFile:
    """The late rows of one partition, and its latest event time."""

    late: int
    without_time: int
    latest_us: int | None
    rows: str | None
    """The file with the late rows, if there are any."""


class GateFiles:
    """The files of one gate in one query, for the driver and for tasks."""

    def __init__(self, side: str, query_id: str, gate: str) -> None:
        self._system, root = opened(side)
        self._folder = f"{root}/{query_id}/{gate}"

    def watermarks(self) -> dict[int, int]:
        """The watermark in milliseconds by its first batch. Empty before the first batch is finished."""
        text = self._read(f"{self._folder}/{_WATERMARKS}")
        if text is None:
            return {}
        try:
            return {int(batch): int(watermark_ms) for batch, watermark_ms in json.loads(text).items()}
        except (ValueError, AttributeError) as error:
            raise PipelineError(
                f"{self._folder}/{_WATERMARKS} is damaged ({error}), so late rows cannot be determined: restore it, or"
                " start the pipeline with a new checkpoint"
            ) from error

    def write_watermarks(self, watermarks: Mapping[int, int]) -> None:
        kept = sorted(watermarks.items())[-_KEPT_CHANGES:]
        write_whole(self._system, f"{self._folder}/{_WATERMARKS}", json.dumps({str(batch): at for batch, at in kept}))

    def writer(self, batch_id: int, attempt: TaskAttempt, schema: pa.Schema) -> LateRowsWriter:
        return LateRowsWriter(self._system, f"{self._folder}/late/{batch_id}/{attempt.run}", attempt, schema)

    def late_files(self, batch_id: int, run: str) -> Sequence[LateFile]:
        """The late rows of a batch, each once.

        They come from this run, or from an earlier one if this run skipped a batch that was already delivered.
        """
        here = f"{self._folder}/late/{batch_id}"
        evaluations: dict[tuple[str, int], dict[int, dict[int, list[str]]]] = {}
        for folder in self._names(here):
            for name in self._names(f"{here}/{folder}"):
                if name.endswith(".json"):
                    stage, partition, attempt, _ = name.split("-", 3)
                    attempts = evaluations.setdefault((folder, int(stage)), {}).setdefault(int(partition), {})
                    attempts.setdefault(int(attempt), []).append(f"{here}/{folder}/{name}")
        ours = {key: evaluation for key, evaluation in evaluations.items() if key[0] == run}
        whole = [_most_of_each(evaluation) for _, evaluation in sorted((ours or evaluations).items())]
        return [self._late_file(path) for path in max(whole, key=len, default=[])]

    def latest_us(self, batch_id: int) -> int | None:
        """The latest event time in a batch, by any run: every evaluation of a batch has the same rows."""
        here = f"{self._folder}/late/{batch_id}"
        paths = [f"{here}/{run}/{name}" for run in self._names(here) for name in self._names(f"{here}/{run}")]
        found = [self._late_file(path).latest_us for path in paths if path.endswith(".json")]
        return max((at_us for at_us in found if at_us is not None), default=None)

    def forget(self, batch_id: int) -> None:
        """Delete the late rows up to this batch."""
        for name in self._names(f"{self._folder}/late"):
            if int(name) <= batch_id:
                self._system.delete_dir(f"{self._folder}/late/{name}")

    def _late_file(self, path: str) -> LateFile:
        text = self._read(path)
        if text is None:
            raise PipelineError(f"{path} was deleted while its batch was processed: is the pipeline running twice?")
        found = json.loads(text)
        rows = path.removesuffix(".json") + ".arrow" if found["late"] else None
        return LateFile(found["late"], found["without_time"], found["latest_us"], rows)

    def _names(self, folder: str) -> list[str]:
        return [info.base_name for info in self._system.get_file_info(fs.FileSelector(folder, allow_not_found=True))]

    def _read(self, path: str) -> str | None:
        try:
            with self._system.open_input_stream(path) as stream:
                return bytes(stream.read()).decode("utf-8")
        except FileNotFoundError:
            return None


class LateRowsWriter:
    """Writes the late rows of one task. They count once `finish` has returned."""

    def __init__(self, system: fs.FileSystem, folder: str, attempt: TaskAttempt, schema: pa.Schema) -> None:
        name = f"{attempt.stage}-{attempt.partition}-{attempt.attempt}-{uuid.uuid4().hex}"
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
        """Delete the file unless it is finished: the task failed, or Spark did not read all of its rows."""
        if not self._finished and self._writer is not None:
            self._close()
            self._system.delete_file(f"{self._path}.arrow")

    def _close(self) -> None:
        if self._stream is not None:
            self._writer.close()
            self._stream.close()
            self._stream = None


def read_late_file(path: str, side: str) -> pa.RecordBatchFileReader:
    """Open the file with late rows, on the file system of `side`."""
    system, _ = opened(side)
    return pa.ipc.open_file(system.open_input_file(path))


def write_whole(system: fs.FileSystem, path: str, text: str) -> None:
    """Replace the text of a file atomically."""
    folder, _, name = path.rpartition("/")
    draft = f"{folder}/.{name}.{uuid.uuid4().hex}"
    try:
        stream = system.open_output_stream(draft)
    except FileNotFoundError:
        system.create_dir(folder, recursive=True)
        stream = system.open_output_stream(draft)
    with stream:
        stream.write(text.encode("utf-8"))
    system.move(draft, path)


def _most_of_each(evaluation: Mapping[int, Mapping[int, Sequence[str]]]) -> list[str]:
    """The files of the most complete attempt of each partition: an interrupted attempt has fewer files."""
    return [path for attempts in evaluation.values() for path in max(attempts.values(), key=len)]
