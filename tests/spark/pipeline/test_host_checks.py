"""What is checked on a cluster before the first batch."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark.run.host_checks import HostAnswer, Probe, check_answer, check_clocks, skew_of


def test_a_clock_is_compared_with_the_time_that_the_task_may_have_run() -> None:
    assert skew_of(105.0, 100.0, 110.0) == 0.0
    assert skew_of(130.0, 100.0, 110.0) == 20.0
    assert skew_of(40.0, 100.0, 110.0) == -60.0


def test_clocks_that_differ_a_little_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        check_clocks({"near": 4.0, "early": 12.0, "late": -7.0})
    (record,) = caplog.records
    assert "early is 12 s ahead of the driver" in record.getMessage()
    assert "late is 7 s behind the driver" in record.getMessage()
    assert "near" not in record.getMessage()


def test_clocks_that_differ_much_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"lost is 3600 s behind the driver\. Synchronize them"):
        check_clocks({"fine": 0.0, "lost": -3600.0})


def test_a_folder_that_an_executor_shares_is_accepted_and_left_as_it_was(tmp_path: Path) -> None:
    probe = Probe((str(tmp_path / "new" / "checkpoints"), f"file:{tmp_path}"), "0123")
    probe.write()
    (answer,) = probe([0])
    assert not answer.problems
    check_answer(probe, answer)
    probe.remove()
    assert not [path for path in tmp_path.rglob("*") if path.name != "new" and path.name != "checkpoints"]


def test_a_folder_without_the_file_of_the_driver_is_refused(tmp_path: Path) -> None:
    probe = Probe((str(tmp_path / "checkpoints"),), "0123")
    (answer,) = probe([0])
    with pytest.raises(ConfigError, match=r"checkpoints is not shared: .*\(FileNotFoundError") as refused:
        check_answer(probe, answer)
    assert "s3a://BUCKET/PATH or hdfs://HOST:PORT/PATH" in str(refused.value)


def test_a_folder_of_which_the_executor_has_only_a_copy_is_refused(tmp_path: Path) -> None:
    probe = Probe((str(tmp_path),), "0123")
    probe.write()
    answer = HostAnswer("worker-1", ("worker-1", 1), 0.0, {}, "never-written")
    with pytest.raises(ConfigError, match="does not see what an executor wrote"):
        check_answer(probe, answer)


def test_a_folder_that_the_driver_cannot_write_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=rf"the driver cannot write to {tmp_path}/file"):
        Probe((f"{tmp_path}/file",), "0123").write()
