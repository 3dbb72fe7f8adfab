"""The audit log: written before and after, kept through crashes, and more important than the change."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from penstock.console.audit import AuditLog
from penstock.console.views import Person
from penstock.errors import AuditError
from penstock.testing import VirtualClock

ANN = Person("ann", "10.0.0.7")


def open_log(folder: Path, **limits: int) -> AuditLog:
    return AuditLog(folder / "state" / "audit.jsonl", VirtualClock(), **limits)


def test_an_action_stands_there_before_it_has_ended(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    action = log.begin(ANN, "delete_topic", {"name": "orders"})
    (line,) = log.lines(10)
    assert (line.who, line.address, line.action, line.parameters) == (
        "ann",
        "10.0.0.7",
        "delete_topic",
        {"name": "orders"},
    )
    assert line.outcome == "under way"
    action.end(True, "gone")
    (line,) = log.lines(10)
    assert (line.outcome, line.text) == ("done", "gone")


def test_a_failure_is_kept_as_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.begin(ANN, "reset", {}).end(False, "GroupError: it has members")
    assert [(line.outcome, line.text) for line in log.lines(10)] == [("failed", "GroupError: it has members")]


def test_what_was_under_way_when_the_console_died_is_unknown(tmp_path: Path) -> None:
    open_log(tmp_path).begin(ANN, "redrive", {"spec": "orders.dlq"})
    (line,) = open_log(tmp_path).lines(10)
    assert line.outcome == "unknown"


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.begin(ANN, "first", {}).end(True, "")
    with log.path.open("ab") as file:
        file.write(b'{"id": "half of a li')
    log.begin(ANN, "second", {}).end(True, "")
    assert [line.action for line in log.lines(10)] == ["second", "first"]
    assert all(line.outcome == "done" for line in log.lines(10))


def test_what_cannot_be_written_down_must_not_begin(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.path.parent.mkdir()
    log.path.mkdir()  # nobody, not even root, writes lines into a folder
    with pytest.raises(AuditError, match="was refused"):
        log.begin(ANN, "delete_topic", {})


def test_files_are_rotated_and_the_oldest_go(tmp_path: Path) -> None:
    log = open_log(tmp_path, largest_file_bytes=2_000, kept_files=3)
    for number in range(60):
        log.begin(ANN, "produce", {"number": number}).end(True, "x" * 50)
    files = sorted(path.name for path in log.path.parent.iterdir())
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3", "audit.jsonl.lock"]
    assert all(path.stat().st_size <= 2_000 for path in log.path.parent.iterdir())
    numbers = [line.parameters["number"] for line in log.lines(1000)]
    assert numbers == list(range(59, 59 - len(numbers), -1))
    assert len(numbers) > 15
    assert len(log.lines(5)) == 5


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    logs = [open_log(tmp_path, largest_file_bytes=20_000), open_log(tmp_path, largest_file_bytes=20_000)]

    def act(log: AuditLog, name: str) -> None:
        for number in range(20):
            log.begin(ANN, name, {"number": number}).end(True, "")

    threads = [threading.Thread(target=act, args=(logs[each % 2], f"actor-{each}")) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(logs[0].lines(1000)) == 80
    for path in logs[0].path.parent.glob("audit.jsonl*"):
        for line in path.read_text().splitlines():
            json.loads(line)
