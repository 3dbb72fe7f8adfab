"""The file of a supervisor, read by others: what runs, and what has died."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import ConfigError
from penstock.observe.programs import LOGS, ProgramStatus, SupervisorStatus, find_supervisor, log_tail
from penstock.supervising import Program, Supervisor


def status(name: str, state: Any, folder: Path) -> ProgramStatus:
    return ProgramStatus(name, f"{name}.py", state, 1, True, [], 7, 0, 0, None, None, str(folder / f"{name}.log"))


def write(folder: Path, *programs: ProgramStatus, host: str = "", at_ms: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    told = SupervisorStatus(1, host or socket.gethostname(), at_ms, list(programs))
    (folder / "supervisor.json").write_bytes(msgspec.json.encode(told))


def test_a_supervisor_writes_each_change_beside_its_logs(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (tmp_path / "brief.py").write_text(
        "import penstock as ps\nwith ps.connect('memory:') as stream:\n    stream.send('orders', b'1')\n"
        "    app = ps.App(stream, group='brief')\n    app.handle('orders')(lambda value: print('done', flush=True))\n"
        "    app.run(end='latest')\n"
    )
    seen: list[tuple[str, bool]] = []

    def look(name: str, event: str) -> None:
        facts = find_supervisor(tmp_path)
        assert facts is not None
        seen.append((facts.programs[0].state, facts.is_running))

    supervisor = Supervisor(
        [Program("brief", tmp_path / "brief.py", (str(tmp_path / "brief.py"),))], logs=logs, on_event=look
    )
    assert supervisor.run()
    facts = find_supervisor(logs)
    assert facts is not None
    assert seen[0] == ("starting", True)
    assert ([each.state for each in facts.programs], facts.is_running) == (["finished"], False)
    assert facts.status.supervisor == os.getpid()
    assert "done" in log_tail(facts, facts.programs[0])
    assert msgspec.json.encode(supervisor.document().programs) == msgspec.json.encode(facts.status.programs)


def test_a_supervisor_that_was_killed_leaves_dead_programs(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import threading\nthreading.Event().wait()\n")
    command = [sys.executable, "-m", "penstock.cli", "up", str(tmp_path / "waits.py"), "--logs", str(tmp_path / "logs")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert process.stdout is not None
        assert b"started as process" in process.stdout.readline()
        facts = find_supervisor(tmp_path)
        assert facts is not None
        assert facts.is_running
    finally:
        process.kill()
        process.communicate()
    facts = find_supervisor(tmp_path)
    assert facts is not None
    [program] = facts.programs
    assert (facts.is_running, program.state, program.pid) == (False, "dead", None)
    assert program.problems == [f"its supervisor, process {process.pid}, has died: start it again"]


def test_what_had_ended_before_is_not_dead(tmp_path: Path) -> None:
    states = ("running", "finished", "failed", "stopped", "restarting")
    write(tmp_path, *(status(each, each, tmp_path) for each in states))
    facts = find_supervisor(tmp_path)
    assert facts is not None
    assert [each.state for each in facts.programs] == ["dead", "finished", "failed", "stopped", "dead"]


def test_a_supervisor_of_another_host_is_dead_when_it_is_silent(tmp_path: Path) -> None:
    now_ms = round(time.time() * 1000)
    for at_ms, is_running in ((now_ms, True), (now_ms - 120_000, False)):
        write(tmp_path, status("app", "running", tmp_path), host="elsewhere", at_ms=at_ms)
        facts = find_supervisor(tmp_path)
        assert facts is not None
        assert facts.is_running is is_running


def test_the_folder_is_found_and_its_absence_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_supervisor(None) is None
    assert find_supervisor(tmp_path / "nowhere") is None
    write(tmp_path / LOGS, status("app", "finished", tmp_path))
    for folder in (None, tmp_path, tmp_path / LOGS):
        facts = find_supervisor(folder)
        assert facts is not None
        assert facts.folder == tmp_path / LOGS


@pytest.mark.parametrize("text", ["", "{}", '{"supervisor": "x"}', "\xff"])
def test_a_file_that_is_not_a_supervisors_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "supervisor.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"supervisor\.json is not what this version"):
        find_supervisor(tmp_path)


def test_the_end_of_a_log_is_whole_lines_and_goes_back_to_the_part_before(tmp_path: Path) -> None:
    write(tmp_path, status("app", "finished", Path("/somewhere/else")))
    facts = find_supervisor(tmp_path)
    assert facts is not None
    assert log_tail(facts, facts.programs[0]) == ""
    (tmp_path / "app.log.1").write_text("".join(f"old {number:05d}\n" for number in range(10_000)))
    (tmp_path / "app.log").write_bytes(b"new \xff\n")
    text = log_tail(facts, facts.programs[0])
    assert text.endswith("old 09999\nnew �\n")
    assert text.startswith("old ")
    assert 60_000 < len(text) < 70_000
    (tmp_path / "app.log").write_text("x" * 70_000 + "\nlast\n")
    assert log_tail(facts, facts.programs[0]) == "last\n"
