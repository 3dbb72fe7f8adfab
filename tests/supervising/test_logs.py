"""Log files of supervised programs: rotated, bounded, and of one supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.supervising.logs import LogFolder, ProgramLog


def test_a_log_is_rotated_and_the_oldest_parts_are_dropped(tmp_path: Path) -> None:
    with ProgramLog(tmp_path / "app.log", file_bytes=100, files=3) as log:
        for number in range(50):
            log.write(f"line {number:03}\n".encode())
    parts = {path.name: path.read_text().splitlines() for path in tmp_path.iterdir()}
    assert sorted(parts) == ["app.log", "app.log.1", "app.log.2"]
    kept = parts["app.log.2"] + parts["app.log.1"] + parts["app.log"]
    assert kept == [f"line {number:03}" for number in range(50 - len(kept), 50)]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())


def test_a_log_is_continued_after_a_restart_of_the_supervisor(tmp_path: Path) -> None:
    for word in (b"one\n", b"two\n"):
        with ProgramLog(tmp_path / "app.log") as log:
            log.write(word)
    assert (tmp_path / "app.log").read_bytes() == b"one\ntwo\n"


def test_a_full_disk_stops_no_program(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "app.log").symlink_to("/dev/full")
    with ProgramLog(tmp_path / "app.log") as log:
        log.write(b"one\n")
        log.write(b"two\n")
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'app.log'} cannot be written, and output is lost: No space left on device"
    ]


def test_two_supervisors_do_not_share_a_folder(tmp_path: Path) -> None:
    with LogFolder(tmp_path, ["app"]), pytest.raises(ConfigError, match=r"supervisor in process \d+ keeps its logs"):
        LogFolder(tmp_path, ["app"])
    LogFolder(tmp_path, ["app"]).close()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="logs cannot be kept in"):
        LogFolder(tmp_path / "file" / "logs", ["app"])
