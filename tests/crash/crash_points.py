"""Brokers that die just before the first, the second, the third ... change of their files: every point of a crash."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from tests.clients import wire
from tests.sampling import sample
from tests.servers import ANNOUNCEMENT, LAUNCHER, STOP_TIMEOUT_S

PROGRAM: Final = Path(__file__).with_name("crashing_broker.py")
TIMEOUT_S: Final = 20.0
DIED: Final = -signal.SIGKILL
NEVER: Final = 1_000
"""A change that no operation here comes to."""
SAMPLE: Final = 6
"""At how many changes of an operation the broker dies in `make test`."""


class Died(Exception):
    """The broker has killed itself while it was asked for something."""


class Crasher:
    """Starts one broker after the other, each on a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str]
        self._starts = 0

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", LAUNCHER, str(os.getpid()), sys.executable, str(PROGRAM)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def copy(self, template: Path) -> Path:
        """A copy of a data folder, to be spoilt."""
        self._starts += 1
        target = self._folder / str(self._starts)
        shutil.copytree(template, target)
        return target

    def start(self, data: Path, *settings: str, kill_at: int | None = None, armed: bool = False) -> CrashingBroker:
        """A broker on the folder. It dies at the given change, counted from now on, or from `arm` on."""
        self._starts += 1
        output = self._folder / f"output-{self._starts}"
        arguments = ["serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--data", str(data)]
        for setting in settings:
            arguments += ["--config", setting]
        order = {"arguments": arguments, "output": str(output), "data": str(data), "kill_at": kill_at, "armed": armed}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return CrashingBroker(self._process.stdout, output, data)


class CrashingBroker:
    """One broker, from its start to its death."""

    def __init__(self, answers: IO[str], output: Path, data: Path) -> None:
        self._answers = answers
        self._output = output
        self._exit: int | None = None
        self.data = data
        self.port = 0
        self.pid = self._next_answer("pid")

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _next_answer(self, name: str) -> int:
        answer: dict[str, int] = json.loads(self._answers.readline())
        return answer[name]

    def output(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def changes(self) -> int:
        """How many changes it has counted, of a broker that was started with `kill_at`."""
        counted = self._output.with_suffix(".changes")
        return int(counted.read_bytes() or b"0")

    def wait_until_listening(self, timeout_s: float = TIMEOUT_S) -> bool:
        """True once it listens, False if it has died before."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = ANNOUNCEMENT.search(self.output())
            if found is not None:
                self.port = int(found["port"])
                return True
            if not self._is_running():
                return False
            assert time.monotonic() < deadline, f"the broker neither listens nor ends:\n{self.output()}"
            time.sleep(0.002)

    def _is_running(self) -> bool:
        """By the system's own books: a process that has ended but was not waited for yet counts as ended."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return status.rpartition(")")[2].split()[0] != "Z"

    def arm(self) -> None:
        """The changes count from now on."""
        self._signal(signal.SIGUSR1)

    def _signal(self, number: signal.Signals) -> None:
        """To a process that has died meanwhile, there is nothing to say. Its number is not another's before its end
        was asked for."""
        if self._exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def connect(self) -> wire.Connection:
        try:
            return wire.Connection(self)
        except ConnectionError as error:
            raise Died from error

    def terminate(self) -> int:
        """SIGTERM. Answers the exit code, which is `DIED` if it has killed itself."""
        self._signal(signal.SIGTERM)
        return self.wait_for_end()

    def kill(self) -> None:
        """SIGKILL from outside, if it still lives."""
        self._signal(signal.SIGKILL)
        self.wait_for_end()

    def wait_for_end(self) -> int:
        if self._exit is None:
            self._exit = self._next_answer("exit")
        return self._exit

    def metric(self, name: str) -> float:
        """A metric without labels."""
        address = json.loads((self.data / "broker.json").read_text())["metrics"]
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError as error:
            raise Died from error
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def call(connection: wire.Connection, api: str, version: int, **fields: Any) -> Any:
    """As `Connection.call`; raises Died if there is no answer because the broker is dead."""
    try:
        return connection.call(api, version, **fields)
    except (wire.ConnectionClosed, ConnectionError) as error:
        raise Died from error


Promised = set[str]
"""What the broker has answered, as the test calls it."""


def die_at_every_point(
    crasher: Crasher,
    template: Path,
    act: Callable[[CrashingBroker, Promised], None],
    check: Callable[[CrashingBroker, Promised], None],
    *settings: str,
    armed: bool = False,
) -> int:
    """Have `act` come to its end once and count the changes that it leads to. Then have a broker die at the first of
    them, look with `check` what the next one makes of it, and so on with the second: at a sample of them in
    `make test`, at all in a soak. Answers how many there are.

    `armed`: the changes count from the start of the broker on, so that it dies while it recovers, too.
    """
    finished, changes = _die_once(crasher, template, act, check, *settings, kill_at=NEVER, armed=armed)
    assert finished, f"more than {NEVER} changes, and no end of it"
    for kill_at in sample(range(1, changes + 1), SAMPLE):
        # With luck it comes to its end before: what it does beside `act` takes as many changes as it likes.
        _die_once(crasher, template, act, check, *settings, kill_at=kill_at, armed=armed)
    return changes


def _die_once(
    crasher: Crasher,
    template: Path,
    act: Callable[[CrashingBroker, Promised], None],
    check: Callable[[CrashingBroker, Promised], None],
    *settings: str,
    kill_at: int,
    armed: bool,
) -> tuple[bool, int]:
    """Whether `act` came to its end before the broker died at this change, and how many changes there were."""
    data = crasher.copy(template)
    promised: Promised = set()
    broker = crasher.start(data, *settings, kill_at=kill_at, armed=armed)
    finished = False
    try:
        if broker.wait_until_listening():
            broker.arm()
            act(broker, promised)
            finished = True
    except Died:
        assert broker.wait_for_end() == DIED, broker.output()
    finally:
        broker.kill()
    changes = broker.changes()
    after = crasher.start(data)
    try:
        assert after.wait_until_listening(), f"after its death at change {kill_at} it does not start:\n{after.output()}"
        check(after, promised)
    except Exception as error:
        raise AssertionError(f"after a death at change {kill_at}, when {sorted(promised)} was answered") from error
    finally:
        after.kill()
    shutil.rmtree(data)
    return finished, changes
