"""What a gate keeps in files: each row once, whoever wrote it, and however often."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from penstock.errors import ConfigError, PipelineError
from penstock.spark.late.files import GateFiles, TaskAttempt, read_late_file
from tests.moto_server import REGION, shared_endpoint

SCHEMA = pa.schema([("id", pa.int64())])


def hold(files: GateFiles, attempt: TaskAttempt, ids: list[int], latest_us: int = 0, *, finish: bool = True) -> None:
    holding = files.writer(3, attempt, SCHEMA)
    if ids:
        holding.add(pa.record_batch([pa.array(ids, pa.int64())], schema=SCHEMA), 0)
    if finish:
        holding.finish(latest_us)
    else:
        holding.abandon()


def held_ids(files: GateFiles, side: str, run: str) -> list[int]:
    ids: list[int] = []
    for held in files.late_files(3, run):
        if held.rows is not None:
            ids += read_late_file(held.rows, side).read_all().column(0).to_pylist()
    return sorted(ids)


@pytest.fixture(params=["local", "s3"])
def side(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "side")
    endpoint = shared_endpoint().removeprefix("http://")
    bucket = f"late-{uuid.uuid4().hex}"
    fs.S3FileSystem(endpoint_override=endpoint, scheme="http", region=REGION, allow_bucket_creation=True).create_dir(
        bucket
    )
    return f"s3a://{bucket}/side?endpoint_override={endpoint}&scheme=http&region={REGION}"


def test_one_whole_evaluation_is_chosen_among_many(side: str) -> None:
    files = GateFiles(side, "query", "gate")
    hold(files, TaskAttempt("run", stage=1, partition=0, attempt=10), [1])  # of an evaluation that was cut short
    hold(files, TaskAttempt("run", stage=2, partition=0, attempt=11), [1])
    hold(files, TaskAttempt("run", stage=2, partition=0, attempt=12), [1])  # the same again, by another attempt
    hold(files, TaskAttempt("run", stage=2, partition=1, attempt=13), [2, 2], latest_us=77)
    hold(files, TaskAttempt("run", stage=2, partition=1, attempt=14), [9], finish=False)
    hold(files, TaskAttempt("run", stage=3, partition=0, attempt=15), [1])
    hold(files, TaskAttempt("run", stage=3, partition=0, attempt=15), [2, 2])  # one task, two partitions
    hold(files, TaskAttempt("older", stage=9, partition=0, attempt=1), [1])
    assert held_ids(files, side, "run") == [1, 2, 2]
    assert held_ids(files, side, "a run that evaluated nothing") == [1, 2, 2]
    assert files.latest_us(3) == 77
    files.forget(2)
    assert held_ids(files, side, "run") == [1, 2, 2]
    files.forget(3)
    assert held_ids(files, side, "run") == []
    assert files.latest_us(3) is None


def test_watermarks_are_remembered_for_the_last_batches(side: str) -> None:
    files = GateFiles(side, "query", "gate")
    assert files.watermarks() == {}
    files.write_watermarks({batch: batch * 10 for batch in range(150)})
    assert GateFiles(side, "query", "gate").watermarks() == {batch: batch * 10 for batch in range(50, 150)}


def test_damaged_watermarks_are_not_guessed_at(tmp_path: Path) -> None:
    files = GateFiles(str(tmp_path), "query", "gate")
    files.write_watermarks({1: 1})
    (tmp_path / "query" / "gate" / "watermarks.json").write_text("{")
    with pytest.raises(PipelineError, match="is damaged"):
        files.watermarks()


def test_a_folder_that_cannot_be_reached_is_refused() -> None:
    with pytest.raises(ConfigError, match="dbfs://x/y cannot be reached"):
        GateFiles("dbfs://x/y", "query", "gate")
