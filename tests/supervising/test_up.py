"""`penstock up` and `penstock run --supervise`, as commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer import Exit

import penstock
from penstock.cli.commands.up import supervise_programs
from penstock.model.retry import Retry
from penstock.supervising import RestartPolicy, programs_in
from tests.cli.running import COMMAND, Command
from tests.clients.names import fresh
from tests.consuming.eventually import wait_until
from tests.servers import Penstock, free_ports
from tests.supervising import programs
from tests.supervising.test_supervisor import is_alive

TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    # Each restart of a killed app waits until the group has given up the member before it.
    quick = ("--config", "group.initial.rebalance.delay.ms=0", "--config", "group.min.session.timeout.ms=1000")
    with Penstock(tmp_path_factory.mktemp("up"), *quick) as running:
        yield running


@pytest.fixture
def run(server: Penstock) -> Command:
    return Command(f"kafka://{server.bootstrap}")


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


class Up:
    """A running `penstock up`."""

    def __init__(self, run: Command, folder: Path, address: str, *arguments: str) -> None:
        self._address = address
        options = ["--health", address, "--logs", str(folder / "logs")]
        self.process = run.start(*arguments, *options)

    def ask(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://{self._address}{path}", timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, None

    def program(self, number: int = 0) -> dict[str, Any]:
        told: dict[str, Any] = self.ask("/programs")[1]["programs"][number]
        return told

    def wait_until_ready(self, timeout_s: float = TIMEOUT_S) -> None:
        wait_until(lambda: self.ask("/readyz")[0] == 200, timeout_s)

    def end(self) -> tuple[int, str]:
        """Drain it."""
        self.process.terminate()
        _, told = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, told


@pytest.fixture
def up(run: Command, tmp_path: Path, address: str) -> Iterator[Any]:
    started: list[Up] = []

    def begin(*arguments: str) -> Up:
        started.append(Up(run, tmp_path, address, *arguments))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate(timeout=TIMEOUT_S)


def test_an_app_that_is_killed_in_the_middle_handles_every_record(up: Any, server: Penstock, tmp_path: Path) -> None:
    topic, url = fresh(), f"kafka://{server.bootstrap}"
    with penstock.connect(url) as stream:
        stream.create_topic(topic)

        def send(numbers: range) -> None:
            for number in numbers:
                stream.send(topic, str(number))
            stream.flush(30)

        def handled() -> set[str]:
            file = tmp_path / "handled.txt"
            return set(file.read_text().split()) if file.exists() else set()

        programs.write(tmp_path, app=programs.HANDLES.format(url=url, topic=topic))
        running = up("up", str(tmp_path), "--restart-delay", "0.1")
        send(range(200))
        wait_until(lambda: len(handled()) >= 50, TIMEOUT_S)
        os.kill(running.program()["pid"], signal.SIGKILL)
        send(range(200, 400))
        wait_until(lambda: handled() == {str(number) for number in range(400)}, TIMEOUT_S)
    running.wait_until_ready()
    wait_until(lambda: running.program()["progress"] > 0)
    app = running.program()
    assert (app["name"], app["state"], app["restarts"], app["last_error"]) == ("app", "running", 1, "killed by SIGKILL")
    assert running.ask("/healthz") == (200, {"status": "ok", "problems": []})
    code, told = running.end()
    assert code == 0, told
    assert "app  penstock: died after" in told
    assert "app  penstock: has ended (exit code 0)" in told


def test_a_record_that_kills_its_app_is_a_dead_letter_before_the_app_is_given_up(
    up: Any, server: Penstock, tmp_path: Path
) -> None:
    topic, url = fresh(), f"kafka://{server.bootstrap}"
    with penstock.connect(url) as stream:
        stream.create_topic(topic)
        for number in range(5):
            stream.send(topic, str(number))
        stream.flush(30)
        programs.write(tmp_path, app=programs.KILLED_BY_A_RECORD.format(url=url, topic=topic))
        running = up("up", str(tmp_path), "--restart-delay", "0.1")
        handled = tmp_path / "handled.txt"
        wait_until(lambda: handled.exists() and set(handled.read_text().split()) == set("1234"), 2 * TIMEOUT_S)
        assert [record.value for record in stream.read(f"{topic}.dlq")] == [b"0"]
    assert running.program()["restarts"] >= 5
    assert running.program()["state"] != "failed"
    assert running.end()[0] == 0


def test_programs_die_with_a_killed_supervisor(up: Any, tmp_path: Path) -> None:
    programs.write(tmp_path, one=programs.IDLE, two=programs.IDLE)
    running = up("up", str(tmp_path))
    running.wait_until_ready()
    pids = [running.program(number)["pid"] for number in range(2)]
    running.process.kill()
    wait_until(lambda: not any(map(is_alive, pids)))


def test_one_program_is_supervised_by_run(up: Any, tmp_path: Path) -> None:
    text = programs.IDLE + "import sys\nprint(sys.argv[1:], flush=True)\n"
    (file,) = programs.write(tmp_path, idle=text)
    running = up("run", "--supervise", str(file), "--quiet")
    running.wait_until_ready()
    os.kill(running.program()["pid"], signal.SIGKILL)
    wait_until(lambda: running.program()["restarts"] == 1, TIMEOUT_S)
    running.wait_until_ready()
    code, told = running.end()
    assert code == 0, told
    assert "idle  []" in told


def test_a_hopeless_program_ends_the_command_with_1(run: Command, tmp_path: Path) -> None:
    files = programs.write(tmp_path, broken="def f(:\n", fine="raise SystemExit(0)\n")
    done = run("up", *map(str, files), "--logs", str(tmp_path / "logs"))
    assert done.code == 1
    assert "SyntaxError" in done.err
    assert "It is not started again: a configuration error, which a restart cannot cure" in done.err
    assert f"penstock: given up: broken. Their logs are in {tmp_path / 'logs'}" in done.err


def test_what_cannot_be_supervised_is_told_before_anything_is_started(
    run: Command, tmp_path: Path, address: str
) -> None:
    (file,) = programs.write(tmp_path, app="print('started')\n")
    logs = ("--logs", str(tmp_path / "logs"))
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        taken = run("up", str(file), *logs, "--health", address)
    assert taken.code == 1
    assert f"cannot be served at {address}: Address already in use" in taken.err
    absent = run("up", str(tmp_path / "no.py"), *logs)
    assert (absent.code, "there is no file or folder" in absent.err) == (1, True)
    alone = run("run", str(file), "--health", address)
    assert (alone.code, "it needs --supervise" in alone.err) == (2, True)
    assert "started" not in taken.out + taken.err + absent.err + alone.out


def test_a_unit_file_is_written_once_and_runs_the_same_command(run: Command, tmp_path: Path) -> None:
    programs.write(tmp_path, app=programs.IDLE)
    unit = tmp_path / "shop.service"
    done = run.well("up", str(tmp_path), "--systemd", str(unit), "--drain", "30", "--health", "127.0.0.1:9470")
    assert "systemctl enable --now shop.service" in done.err
    (command,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    for words in ('"up"', '"--drain" "30"', '"--health" "127.0.0.1:9470"', f'"{tmp_path / "app.py"}"'):
        assert words in command
    assert "TimeoutStopSec=50" in unit.read_text()
    again = run("up", str(tmp_path), "--systemd", str(unit))
    assert (again.code, "exists: remove it first" in again.err) == (1, True)


def test_run_runs_the_apps_that_a_file_defines(run: Command, tmp_path: Path) -> None:
    two = programs.IDLE + programs.IDLE.replace("idle", "second").replace("orders", "others").replace("handled", "too")
    two = two.replace("app", "second", 2)
    (file,) = programs.write(tmp_path, two=two)
    process = run.start("run", str(file))
    assert process.stdout is not None
    lines = {process.stdout.readline() for _ in range(2)}
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, told
    assert lines == {"handled b'1'\n", "too b'1'\n"}


def test_a_supervisor_that_is_the_first_process_of_a_container_leaves_no_zombies(run: Command, tmp_path: Path) -> None:
    (file,) = programs.write(tmp_path, orphans=programs.LEAVES_ORPHANS)
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True, timeout=30, check=False).returncode != 0:
        pytest.skip("this machine does not let unshare make a namespace of processes")
    up_there = ["up", str(file), "--logs", str(tmp_path / "logs")]
    process = subprocess.Popen(
        [*inside, *COMMAND, *up_there],
        stderr=subprocess.PIPE,
        text=True,
    )
    _, told = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, told


USES_SPARK = """
import penstock.spark
"""
"""What the supervisor looks for."""


@pytest.mark.xdist_group("spark-cluster")  # it starts a JVM
@pytest.mark.parametrize("command", [("up",), ("run", "--supervise")], ids=["up", "run"])
def test_an_archive_of_sparks_classes_is_begun_once_programs_are_ready_and_ends_with_the_supervisor(
    up: Any, run: Command, tmp_path: Path, command: tuple[str, ...]
) -> None:
    cache = tmp_path / "cache"
    run.environment = {**run.environment, "PENSTOCK_CACHE": str(cache)}
    programs.write(tmp_path, app=USES_SPARK + programs.IDLE)

    def begun() -> list[Path]:
        return list(cache.glob("spark/*/archiving-*"))

    running = up(*command, str(tmp_path / "app.py"))
    wait_until(lambda: bool(begun()), TIMEOUT_S)
    assert running.ask("/readyz")[0] == 200
    assert running.end()[0] == 0
    assert not begun(), "an archive that was not completed leaves nothing behind"


@pytest.mark.parametrize(("text", "wanted", "made"), [(USES_SPARK, True, 1), (USES_SPARK, False, 0), ("", True, 0)])
def test_no_archive_is_made_without_spark_or_if_it_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, wanted: bool, made: int
) -> None:
    makers: list[object] = []

    class Noting(contextlib.nullcontext[None]):
        def __init__(self, supervisor: object) -> None:
            super().__init__()
            makers.append(supervisor)

    monkeypatch.setattr("penstock.cli.commands.up._ArchiveMaker", Noting)
    programs.write(tmp_path, app=text + programs.DIES_AT_ONCE)
    policy = RestartPolicy(backoff=Retry(None, first_delay_s=0.01), give_up_after=1)
    app, logs = programs_in([tmp_path / "app.py"]), tmp_path / "logs"
    with pytest.raises(Exit):
        supervise_programs(app, logs=logs, health=None, policy=policy, class_archive=wanted)
    assert len(makers) == made


def test_options_of_supervision_go_on_into_the_unit_and_not_without_it(run: Command, tmp_path: Path) -> None:
    programs.write(tmp_path, app=USES_SPARK)
    unit = tmp_path / "shop.service"
    run.well("up", str(tmp_path / "app.py"), "--systemd", str(unit), "--no-class-archive")
    assert "--no-class-archive" in unit.read_text()
    assert run("run", str(tmp_path / "app.py"), "--no-class-archive").code == 2
