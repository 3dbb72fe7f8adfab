"""Processes that the fork server starts are like those of a new interpreter, and end with whatever they depend on."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

from penstock.spark.sessions.fork_server import LOG, OF_EACH_PROCESS, PROGRAMS
from penstock.spark.sessions.worker_environment import python_for_spark
from tests.clients.waiting import eventually
from tests.spark.killing import ROOT

pytestmark = [
    pytest.mark.xdist_group("fork-server"),  # no JVM is needed
    pytest.mark.skipif(sys.platform != "linux", reason="the fork server needs Linux"),
]

PROGRAM: Final = "tests.spark.forked_program"
SPARK_HOME: Final = str(Path(pyspark.__file__).parent)
PATIENCE_S: Final = 120.0
DRIVER: Final = """
import sys
from penstock.spark.sessions import fork_server
assert fork_server.start_fork_server(sys.argv[1], sys.argv[2:])
print(fork_server._started[sys.argv[1]].pid, flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Python:
    """What Spark would run as Python, with a fork server or without."""

    script: str
    folder: Path
    driver: subprocess.Popen[str] | None = None
    server: int = 0
    """Its process."""

    def start(
        self, *arguments: str, module: str = PROGRAM, cwd: Path = ROOT, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.script, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**environment(), **(env or {})},
        )

    def run(self, *arguments: str, **changes: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **changes)
        output, errors = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def forks(self, **changes: Any) -> bool:
        """Whether a process is forked by the server, if it is started with these changes."""
        done = self.run("origin", **changes)
        assert done.returncode == 0, done.stderr
        _, parent = json.loads(done.stdout)
        return bool(parent == self.server)

    def handles(self, number: int) -> bool:
        """Whether the one process that the server has started has a function for this signal."""
        (pid,) = Path(f"/proc/{self.server}/task/{self.server}/children").read_text().split()
        caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        assert caught is not None
        return bool(int(caught[1], 16) & 1 << (number - 1))

    def log(self) -> str:
        return (self.folder / LOG).read_text()


def environment() -> dict[str, str]:
    """That of a process of Spark."""
    path = os.pathsep.join([f"{SPARK_HOME}/python/lib/pyspark.zip", os.environ.get("PYTHONPATH", "")])
    others = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", "SPARK_LOCAL_DIRS": "/anywhere"}
    return {**of_driver(), **others, "PYTHONPATH": path, "PYTHON_WORKER_FACTORY_SECRET": "secret"}


def of_driver() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


@contextmanager
def forking(folder: Path) -> Iterator[Python]:
    script = python_for_spark(SPARK_HOME, str(folder))
    command = [sys.executable, "-c", DRIVER, str(folder), PROGRAM, "pyspark.daemon"]
    with subprocess.Popen(
        command, cwd=ROOT, env=of_driver(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        server = int(driver.stdout.readline())
        with ended(server):
            yield Python(script, folder, driver, server)
            driver.kill()


@contextmanager
def ended(*pids: int) -> Iterator[None]:
    """These processes, which are not children, end before the block is left."""
    with ExitStack() as opened:
        files = []
        for pid in pids:
            files.append(os.pidfd_open(pid))
            opened.callback(os.close, files[-1])
        yield
        for pid, file in zip(pids, files, strict=True):
            assert select.select([file], [], [], PATIENCE_S)[0], f"process {pid} still runs"


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Python]:
    with forking(tmp_path_factory.mktemp("forks")) as python:
        yield python


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder with a short path: that of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Without a server."""
    folder = tmp_path_factory.mktemp("none")
    return Python(python_for_spark(SPARK_HOME, str(folder)), folder)


def line_of(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=PATIENCE_S)[1]
    return json.loads(line)


def test_a_forked_process_is_like_a_new_interpreter(forked: Python, fresh: Python) -> None:
    assert forked.forks()
    assert not fresh.forks()
    (told,) = json.loads(forked.run("describe", "a b", "*").stdout)
    (expected,) = json.loads(fresh.run("describe", "a b", "*").stdout)
    assert told == expected
    assert told["environment"]["PYTHON_WORKER_FACTORY_SECRET"] == "secret"


def test_ignored_signals_buffering_and_umask_are_those_of_the_client(forked: Python, fresh: Python) -> None:
    before = os.umask(0o027)
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        told, expected = (
            json.loads(python.run("describe", env={"PYTHONUNBUFFERED": ""}).stdout)[0] for python in (forked, fresh)
        )
    finally:
        os.umask(before)
        signal.signal(signal.SIGHUP, handler)
    assert told == expected
    assert told["umask"] == 0o027
    assert told["signals"][str(int(signal.SIGHUP))] == str(signal.SIG_IGN)


def test_each_process_has_random_numbers_of_its_own(forked: Python) -> None:
    processes = [forked.run("numbers") for _ in range(2)]
    assert [process.returncode for process in processes] == [0, 0], [process.stderr for process in processes]
    first, second = (json.loads(process.stdout) for process in processes)
    assert first[0] != second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize(
    "arguments", [("exit", "3"), ("exit", "-1"), ("exit", "null"), ("exit", '"a reason"'), ("raise",), ("kill", "9")]
)
def test_a_process_ends_as_it_would_without_the_server(forked: Python, fresh: Python, arguments: tuple[str]) -> None:
    done, expected = forked.run(*arguments), fresh.run(*arguments)
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert done.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


def test_a_process_that_spark_has_hung_up_on_ends_without_a_word(forked: Python) -> None:
    done = forked.run("hang up")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_the_streams_belong_to_the_process(forked: Python) -> None:
    done = forked.start("echo")
    line_of(done)
    output, _ = done.communicate("a line\nand another", timeout=PATIENCE_S)
    assert (output, done.returncode) == ("a line\nand another", 0)
    with forked.start("close") as closing:
        assert closing.stdout is not None
        assert closing.stdout.read() == ""  # while it runs
        assert closing.poll() is None


def test_signals_to_the_client_reach_the_process(forked: Python) -> None:
    handling = forked.start("terminate")
    assert line_of(handling) == ["ready"]
    handling.terminate()
    output, errors = handling.communicate(timeout=PATIENCE_S)
    assert output == '["got", 15]\n', errors
    assert handling.returncode == 7
    helpless = forked.start("echo")
    with ended(line_of(helpless)[0]):
        helpless.terminate()
        helpless.wait(PATIENCE_S)  # before its input ends, at which it would end by itself
    helpless.communicate()
    assert helpless.returncode == -signal.SIGTERM


def test_a_process_dies_with_its_client_and_a_client_with_its_process(forked: Python) -> None:
    first, second = forked.start("echo"), forked.start("echo")
    with ended(line_of(first)[0]):
        first.kill()
        first.communicate(timeout=PATIENCE_S)
    os.kill(line_of(second)[0], signal.SIGKILL)
    second.communicate(timeout=PATIENCE_S)
    assert second.returncode == -signal.SIGKILL


def test_processes_die_with_the_server_and_the_next_is_an_interpreter(tmp_path: Path) -> None:
    with forking(tmp_path) as python:
        process = python.start("echo")
        with ended(line_of(process)[0]):
            os.kill(python.server, signal.SIGKILL)
            process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert not python.forks()


def test_the_server_of_a_killed_driver_ends_with_its_last_process(tmp_path: Path) -> None:
    with forking(tmp_path) as python:
        assert python.driver is not None
        process = python.start("echo")
        forked, _ = line_of(process)
        python.driver.kill()
        python.driver.wait(PATIENCE_S)
        assert python.forks()  # the JVM has not ended yet, and may need one more
        with ended(forked, python.server):
            process.communicate("", timeout=PATIENCE_S)  # as the JVM's end closes it
        assert process.returncode == 0
        assert not python.forks()


def test_two_drivers_have_a_server_each(forked: Python, tmp_path: Path) -> None:
    with forking(tmp_path) as other:
        assert other.server != forked.server
        assert other.forks()
        assert forked.forks()
    assert forked.forks()


def test_what_a_fork_cannot_be_is_left_to_an_interpreter(forked: Python, tmp_path: Path) -> None:
    path = environment()["PYTHONPATH"]
    assert forked.forks(env={"PYTHONPATH": f"{path}:{path}", "SPARK_REUSE_WORKER": "1", "OMP_NUM_THREADS": "1"})
    assert not forked.forks(env={"PYTHONPATH": f"{path}:{tmp_path}"})
    assert not forked.forks(env={"PYTHONPATH": f"{path}:{ROOT}"}, cwd=tmp_path)
    assert not forked.forks(env={"OMP_NUM_THREADS": "4"})
    assert not forked.forks(env={"MY_VARIABLE": "1", "TZ": "Asia/Tokyo"})
    assert not forked.forks(env={"PYTHONHASHSEED": "1"})
    other = forked.run("0", module="timeit")
    assert (other.returncode, "loop" in other.stdout) == (0, True)
    said = forked.log()
    for reason in ("PYTHONPATH is", "the working folder is", "OMP_NUM_THREADS is 4", "timeit"):
        assert reason in said
    assert "variables differ: MY_VARIABLE, TZ\n" in said
    assert "variables differ: PYTHONHASHSEED\n" in said


def test_the_server_has_one_thread_and_has_imported_all_it_forks_for(forked: Python) -> None:
    assert forked.forks()
    assert len(os.listdir(f"/proc/{forked.server}/task")) == 1
    assert "cannot import" not in forked.log()
    assert (forked.folder / "python.sock").is_socket()


def test_spark_has_the_modules_and_does_not_read_at_import_what_it_sets_for_each_process() -> None:
    for program in PROGRAMS:
        assert (Path(SPARK_HOME).parent / f"{program.replace('.', '/')}.py").is_file(), program
    command = [sys.executable, "-c", READ_AT_IMPORT, *PROGRAMS]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert set(json.loads(done.stdout)) & OF_EACH_PROCESS <= {"PYTHONPATH"}


READ_AT_IMPORT: Final = """
import importlib, json, os, sys
read = []
class Watched(type(os.environ)):
    def __getitem__(self, name):
        read.append(name)
        return super().__getitem__(name)
    def __contains__(self, name):
        read.append(name)
        return super().__contains__(name)
os.environ.__class__ = Watched
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(set(map(str, read)))))
"""


def test_a_daemon_is_ended_by_its_input_and_by_a_signal(forked: Python, socket_folder: Path) -> None:
    sockets = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(socket_folder)}
    for by_signal in (False, True):
        with forked.start("pyspark.worker", module="pyspark.daemon", env=sockets) as daemon:
            assert daemon.stdin is not None
            assert daemon.stdout is not None
            daemon.stdout.read(4)  # it has written where it listens
            assert list(socket_folder.glob(".*.sock"))
            if by_signal:
                eventually("the daemon handles the signal", lambda: forked.handles(signal.SIGTERM), PATIENCE_S)
                daemon.terminate()
            else:
                daemon.stdin.close()
            daemon.wait(PATIENCE_S)
            assert not list(socket_folder.glob(".*.sock"))
