"""The checkpoint folder of a pipeline: it has one owner, and refuses what its state cannot survive."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import CheckpointMismatchError, ConfigError, PipelineRunningError
from penstock.spark.run.checkpoint_folder import CheckpointFolder, Fingerprint, check_name, default_checkpoints
from penstock.spark.run.state_folder import StateFolder

COUNTS = Fingerprint(sources=("topic orders",), stateful=("Aggregate:aaaa",), mode="append")


def folder_of(pipeline: str, path: Path) -> CheckpointFolder:
    return CheckpointFolder(pipeline, StateFolder(str(path)))


def test_a_folder_is_taken_up_again_by_its_own_pipeline(tmp_path: Path) -> None:
    for _ in range(2):
        folder = folder_of("usage", tmp_path / "usage")
        folder.open()
        folder.check_query("spend", COUNTS)
        folder.close()


def test_the_folder_of_another_pipeline_is_refused_by_both_names(tmp_path: Path) -> None:
    first = folder_of("usage", tmp_path / "x")
    first.open()
    first.close()
    with pytest.raises(CheckpointMismatchError, match=r"'usage'.*'movers'"):
        folder_of("movers", tmp_path / "x").open()


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(CheckpointMismatchError, match="photos"):
        folder_of("usage", tmp_path).open()


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', "[]", '{"format": "x", "pipeline": "usage"}'])
def test_a_damaged_folder_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "pipeline.json").write_text(text)
    with pytest.raises(CheckpointMismatchError, match=r"pipeline\.json"):
        folder_of("usage", tmp_path).open()
    assert (tmp_path / "pipeline.json").read_text() == text


def test_a_folder_of_a_newer_penstock_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pipeline.json").write_text(json.dumps({"format": 99, "pipeline": "usage"}))
    with pytest.raises(CheckpointMismatchError, match="newer"):
        folder_of("usage", tmp_path).open()


def test_two_runs_at_once_are_refused_and_the_process_is_named(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from penstock.spark.run.checkpoint_folder import CheckpointFolder\n"
        "from penstock.spark.run.state_folder import StateFolder\n"
        "folder = CheckpointFolder('usage', StateFolder(sys.argv[1]))\n"
        "folder.open()\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(PipelineRunningError, match=f"process {other.pid}"):
            folder_of("usage", tmp_path).open()
        other.kill()
        other.wait()
    folder = folder_of("usage", tmp_path)  # what a killed process held is free
    folder.open()
    folder.close()


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (Fingerprint(("topic payments",), COUNTS.stateful, "append"), "topic payments"),
        (Fingerprint(COUNTS.sources, ("Aggregate:bbbb",), "append"), "other columns"),
        (Fingerprint(COUNTS.sources, (), "append"), "no stateful operator"),
        (Fingerprint(COUNTS.sources, ("Deduplicate:cccc", *COUNTS.stateful), "append"), "Deduplicate"),
        (Fingerprint(COUNTS.sources, COUNTS.stateful, "update"), "update"),
    ],
)
def test_a_change_that_state_cannot_survive_is_refused_with_what_to_do(
    tmp_path: Path, now: Fingerprint, told: str
) -> None:
    folder = folder_of("usage", tmp_path)
    folder.open()
    folder.check_query("spend", COUNTS)
    with pytest.raises(CheckpointMismatchError, match=told) as refused:
        folder.check_query("spend", now)
    assert "--reprocess" in str(refused.value)
    folder.check_query("spend", COUNTS)
    folder.close()


def summing(aggregate: str, spark: str = "4.3.0") -> Fingerprint:
    operator = {"operator": ["Aggregate"], "grouping key": ["customer"], "aggregate": [aggregate]}
    return dataclasses.replace(COUNTS, operators=(operator,), spark=spark)


def test_a_checkpoint_from_before_operators_were_written_down_is_taken_up_and_from_then_on_watched(
    tmp_path: Path,
) -> None:
    folder = folder_of("usage", tmp_path)
    folder.open()
    before = {"sources": COUNTS.sources, "stateful": COUNTS.stateful, "mode": COUNTS.mode}
    (tmp_path / "spend").mkdir()
    (tmp_path / "spend" / "query.json").write_text(json.dumps(before))
    folder.check_query("spend", summing("sum(amount)"))
    with pytest.raises(CheckpointMismatchError, match=r"in Aggregate, aggregate sum\(amount\) became max\(amount\)"):
        folder.check_query("spend", summing("max(amount)"))
    folder.close()


def test_another_version_of_spark_may_write_operators_in_other_words(tmp_path: Path) -> None:
    folder = folder_of("usage", tmp_path)
    folder.open()
    folder.check_query("spend", summing("sum(amount)"))
    folder.check_query("spend", summing("sum(amount, false)", "4.4.0"))
    with pytest.raises(CheckpointMismatchError, match="became"):
        folder.check_query("spend", summing("sum(amount)", "4.4.0"))
    folder.close()


def test_a_query_without_state_may_change_its_mode(tmp_path: Path) -> None:
    folder = folder_of("usage", tmp_path)
    folder.open()
    folder.check_query("copy", Fingerprint(("topic orders",), (), "append"))
    folder.check_query("copy", Fingerprint(("topic orders",), (), "update"))
    folder.close()


def test_checkpoints_stand_beside_the_records_of_an_embedded_log(tmp_path: Path) -> None:
    assert default_checkpoints(f"log:{tmp_path}") == str(tmp_path / "pipelines")
    assert default_checkpoints("kafka://127.0.0.1:9092") == str(Path("pipelines").absolute())


@pytest.mark.parametrize("name", ["", "a b", "a/b", ".hidden", "é", "x" * 101, None])
def test_names_that_cannot_be_folders_and_topics_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="not allowed"):
        check_name(name, "the name of a pipeline")
