"""The supervisor with real programs that die."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.model.retry import Retry
from penstock.supervising import ProgramStatus, RestartPolicy, Supervisor, programs_in
from tests.consuming.eventually import wait_until
from tests.seeds import seed_of
from tests.supervising import programs

TIMEOUT_S = 120.0
AT_ONCE = RestartPolicy(Retry(None, first_delay_s=0.05, max_delay_s=0.2))


class Running:
    """A supervisor in a thread."""

    def __init__(self, folder: Path, files: list[Path], **options: object) -> None:
        self.events: list[tuple[str, str]] = []
        settings = {"policy": AT_ONCE, "chance": random.Random(seed_of()), **options}
        self.supervisor = Supervisor(
            programs_in(files),
            logs=folder / "logs",
            on_event=lambda name, event: self.events.append((name, event)),
            **settings,  # type: ignore[arg-type]
        )
        self.ended_well: bool | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.ended_well = self.supervisor.run()

    def __getitem__(self, name: str) -> ProgramStatus:
        return next(each for each in self.supervisor.status() if each.name == name)

    def wait_for(self, condition: Callable[[], object]) -> None:
        wait_until(condition, TIMEOUT_S)

    def wait(self) -> bool:
        self._thread.join(TIMEOUT_S)
        assert self.ended_well is not None, self.events
        return self.ended_well

    def close(self) -> None:
        self.supervisor.kill()
        self._thread.join(TIMEOUT_S)


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def begin(**given: object) -> Running:
        texts = {name: text for name, text in given.items() if isinstance(text, str)}
        options = {name: value for name, value in given.items() if name not in texts}
        running.append(Running(tmp_path, programs.write(tmp_path, **texts), **options))
        return running[-1]

    yield begin
    for each in running:
        each.close()


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_app_is_started_again_and_a_hopeless_program_is_given_up_beside_it(
    supervise: Callable[..., Running], tmp_path: Path
) -> None:
    running = supervise(idle=programs.IDLE, hopeless=programs.DIES_AT_ONCE, broken="def f(:\n", empty="x = 1\n")
    names = ("hopeless", "broken", "empty")
    running.wait_for(lambda: running["idle"].is_ready and all(running[name].state == "failed" for name in names))
    assert running["idle"].restarts == 0
    assert running["hopeless"].restarts == 2
    assert [running[name].restarts for name in ("broken", "empty")] == [0, 0]
    assert "RuntimeError: no luck" in str(running["hopeless"].last_error)
    assert "SyntaxError" in str(running["broken"].last_error)
    assert "empty.py defines no pipeline and no app" in str(running["empty"].last_error)
    assert [each.partition(":")[0] for each in running.supervisor.unhealthy()] == ["hopeless", "broken", "empty"]
    log = (tmp_path / "logs" / "hopeless.log").read_text()
    assert log.count("about to die\n") == 3
    assert "the same error 3 times in a row, before it was ready" in log

    first = running["idle"].pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    running.wait_for(lambda: running["idle"].restarts == 1 and running["idle"].is_ready)
    assert running["idle"].pid != first
    assert running["idle"].last_error == "killed by SIGKILL"
    assert "handled b'1'" in (tmp_path / "logs" / "idle.log").read_text()
    running.supervisor.stop()
    assert not running.wait(), "three programs were given up"
    assert running["idle"].state == "stopped"


def test_a_program_that_dies_after_progress_is_started_again_each_time(supervise: Callable[..., Running]) -> None:
    policy = RestartPolicy(Retry(None, first_delay_s=0.05, max_delay_s=0.2), give_up_after=2, same_error=2)
    running = supervise(mortal=programs.DIES_AFTER_PROGRESS, policy=policy)
    running.wait_for(lambda: running["mortal"].restarts >= 2 or running["mortal"].state == "failed")
    assert running["mortal"].state != "failed", running.events
    assert running["mortal"].last_error == "exit code 3: dying"


def test_programs_are_stopped_in_reverse_order(supervise: Callable[..., Running]) -> None:
    running = supervise(first=programs.IDLE, second=programs.IDLE)
    running.wait_for(lambda: not running.supervisor.unready())
    assert running.supervisor.unhealthy() == []
    running.supervisor.stop()
    assert running.wait()
    ends = [(name, event.partition(" ")[0]) for name, event in running.events if "end" in event]
    assert ends == [("second", "is"), ("second", "has"), ("first", "is"), ("first", "has")]


def test_what_does_not_end_in_time_is_killed_with_all_that_it_started(
    supervise: Callable[..., Running], tmp_path: Path
) -> None:
    running = supervise(stubborn=programs.STUBBORN, drain_s=0.5)
    log = tmp_path / "logs" / "stubborn.log"
    running.wait_for(lambda: "child" in log.read_text() and "up" in log.read_text())
    (child,) = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("child")]
    assert is_alive(child)
    running.supervisor.stop()
    assert not running.wait(), "it had to be killed"
    assert not is_alive(child)


def test_what_a_dead_program_leaves_running_is_ended_before_it_is_started_again(
    supervise: Callable[..., Running], tmp_path: Path
) -> None:
    running = supervise(stubborn=programs.STUBBORN.replace("signal.signal(15, 1); ", ""))
    log = tmp_path / "logs" / "stubborn.log"
    running.wait_for(lambda: "up" in log.read_text())
    (child,) = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("child")]
    pid = running["stubborn"].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    running.wait_for(lambda: running["stubborn"].restarts == 1)
    assert not is_alive(child)
    assert not is_alive(pid)


def test_a_program_that_ends_well_is_not_started_again(supervise: Callable[..., Running]) -> None:
    done = programs.IDLE + "app.run(end='latest')\n"
    running = supervise(done=done, leaves="raise SystemExit(0)\n")
    assert running.wait()
    assert [(each.state, each.restarts) for each in running.supervisor.status()] == [("finished", 0), ("finished", 0)]


def test_an_exit_code_of_wrong_usage_is_not_tried_again(supervise: Callable[..., Running]) -> None:
    running = supervise(usage="raise SystemExit(2)\n", config="raise SystemExit(78)\n")
    assert not running.wait()
    assert [(each.state, each.restarts) for each in running.supervisor.status()] == [("failed", 0), ("failed", 0)]
