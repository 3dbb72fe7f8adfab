"""`log:` URLs: the broker of a folder is started once, serves whoever comes, and ends when nobody is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.broker import last_address
from penstock.errors import BrokerUnavailableError
from penstock.streams.embedded.finding import find, is_owned, owner_pid
from penstock.streams.embedded.starting import OUTPUT_FILE
from tests.clients.waiting import eventually
from tests.servers import Penstock
from tests.streams.embedded import (
    IDLE_S,
    broker_pid,
    client,
    start_client,
    stop_broker,
    url,
    wait_until_idle_broker_ends,
)

TIMEOUT_S = 20.0


def connect(folder: Path) -> penstock.Connection:
    return penstock.connect(url(folder), exit_when_idle_s=IDLE_S)


def test_the_first_client_starts_the_broker_and_the_last_one_lets_it_end(folder: Path) -> None:
    with connect(folder) as stream:
        stream.send("greetings", "hello").result(TIMEOUT_S)
        assert [record.value for record in stream.read("greetings")] == [b"hello"]
        assert is_owned(folder)
    wait_until_idle_broker_ends(folder)


def test_records_outlive_the_broker(folder: Path) -> None:
    with connect(folder) as stream:
        stream.send("greetings", "hello").result(TIMEOUT_S)
    wait_until_idle_broker_ends(folder)
    with connect(folder) as stream:
        stream.send("greetings", "again").result(TIMEOUT_S)
        assert [record.value for record in stream.read("greetings")] == [b"hello", b"again"]


@pytest.mark.parametrize("name", ["with spaces in it", "gr\u00fc\u00df", "a=b;c'd\"e", "-starts-with-a-dash"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    try:
        with connect(folder) as stream:
            assert stream.send("greetings", "hello").result(TIMEOUT_S).offset == 0
    finally:
        stop_broker(folder)


def test_a_relative_folder_is_meant_from_where_the_client_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with penstock.connect("log:./data", exit_when_idle_s=IDLE_S) as stream:
        assert stream.send("greetings", "hello").result(TIMEOUT_S).offset == 0
        assert is_owned(folder)


def test_a_second_connection_uses_the_broker_of_the_first(folder: Path) -> None:
    with connect(folder) as first, connect(folder) as second:
        assert first.bootstrap == second.bootstrap
        first.send("greetings", "hello").result(TIMEOUT_S)
        assert [record.value for record in second.read("greetings")] == [b"hello"]


def test_a_broker_that_was_started_by_hand_is_used(tmp_path: Path) -> None:
    with Penstock(tmp_path) as server, connect(server.data) as stream:
        assert stream.bootstrap == server.bootstrap
        assert stream.send("greetings", "hello").result(TIMEOUT_S).offset == 0


def test_processes_that_race_to_start_it_all_use_one_broker(folder: Path) -> None:
    words = [f"from-{number}" for number in range(5)]
    racers = [start_client(folder, word) for word in words]
    try:
        addresses = {racer.stdout.readline() for racer in racers if racer.stdout is not None}
        assert len(addresses) == 1, f"not one broker but {addresses}"
        assert addresses != {""}
        with connect(folder) as stream:
            records = [record.value for record in stream.read("greetings")]
        assert sorted(value or b"" for value in records) == sorted(word.encode() for word in words)
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    starts = (folder / OUTPUT_FILE).read_text("utf-8").count("listening on")
    assert starts == 1, f"{starts} brokers were started"


def test_threads_that_race_to_start_it_all_use_one_broker(folder: Path) -> None:
    addresses: set[str] = set()

    def greet() -> None:
        with connect(folder) as stream:
            stream.send("greetings", "hello").result(TIMEOUT_S)
            addresses.add(stream.bootstrap)

    threads = [threading.Thread(target=greet) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert len(addresses) == 1


def test_racing_with_a_broker_that_is_started_by_hand_ends_with_one(tmp_path: Path) -> None:
    for attempt in range(3):
        place = tmp_path / str(attempt)
        by_hand = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", "serve", "--data", str(place), "--listen", "127.0.0.1:0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with connect(place) as stream:
                assert stream.send("greetings", "hello").result(TIMEOUT_S).offset == 0
        finally:
            by_hand.terminate()
            by_hand.wait(TIMEOUT_S)
            stop_broker(place)


def test_a_client_that_connects_while_the_broker_ends_gets_the_next_one(folder: Path) -> None:
    """Just when an idle broker closes, its folder is still locked and its address already gone."""
    for _ in range(3):
        with connect(folder) as stream:
            stream.send("greetings", "hello").result(TIMEOUT_S)
            pid = broker_pid(folder)
        os.kill(pid, signal.SIGTERM)
        eventually("the broker takes its address away", lambda: last_address(folder) is None)
    with connect(folder) as stream:
        assert len(list(stream.read("greetings"))) == 3


def test_a_killed_client_leaves_no_broker_behind(folder: Path) -> None:
    with client(folder) as process:
        assert is_owned(folder)
        process.kill()
        process.wait(TIMEOUT_S)
        wait_until_idle_broker_ends(folder)


def test_a_silent_client_keeps_its_broker(folder: Path) -> None:
    """Nothing is sent or read for several times as long as an idle broker stays."""
    with connect(folder) as stream:
        pid = broker_pid(folder)
        until_s = time.monotonic() + 3 * IDLE_S
        eventually("time passes", lambda: time.monotonic() > until_s)
        assert broker_pid(folder) == pid
        assert stream.send("greetings", "hello").result(TIMEOUT_S).offset == 0


def test_interrupting_the_client_does_not_reach_the_broker(folder: Path) -> None:
    """Ctrl-C goes to every process of the terminal's foreground group."""
    with client(folder) as process, connect(folder) as stream:
        pid = broker_pid(folder)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(TIMEOUT_S) != 0
        assert stream.send("greetings", "still here").result(TIMEOUT_S).offset == 1
        assert broker_pid(folder) == pid
        assert os.getsid(pid) == pid


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_broker_inherits_no_files_of_its_client(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    descriptor = os.open(tmp_path / "secret", os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.set_inheritable(True)
    try:
        with connect(folder):
            pid = broker_pid(folder)
            opened = {os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
            assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull
            assert str(tmp_path / "secret") not in opened
            assert os.readlink(f"/proc/self/fd/{listener.fileno()}") not in opened
            assert os.readlink(f"/proc/{pid}/cwd") == "/"
    finally:
        os.close(descriptor)
        listener.close()


def test_a_folder_below_a_file_cannot_be_used_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(BrokerUnavailableError, match=r"Not a directory .*Choose a folder that this user can write"):
        penstock.connect(url(tmp_path / "file" / "data"))


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    yield folder
    folder.chmod(0o700)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_says_so(read_only: Path) -> None:
    with pytest.raises(BrokerUnavailableError, match=r"Permission denied .*Choose a folder"):
        penstock.connect(url(read_only))


def test_a_broker_that_cannot_start_is_quoted(folder: Path) -> None:
    """The place of its topics is taken by a file."""
    folder.mkdir()
    (folder / "topics").write_text("not a folder")
    with pytest.raises(BrokerUnavailableError, match=r"could not be started\. Its output:") as failure:
        penstock.connect(url(folder))
    assert "topics" in str(failure.value)
    assert not is_owned(folder)


def test_an_owner_that_does_not_answer_is_named(folder: Path) -> None:
    with connect(folder):
        pid = broker_pid(folder)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(BrokerUnavailableError, match=f"in use by process {pid}, which does not answer"):
                penstock.connect(url(folder), connect_timeout_s=1)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_nothing_at_the_address_is_told_at_once_with_what_to_do() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        started_s = time.monotonic()
        with pytest.raises(BrokerUnavailableError, match=rf"nothing answers at 127\.0\.0\.1:{port} .*penstock serve"):
            penstock.connect(f"kafka://127.0.0.1:{port}")
        assert time.monotonic() - started_s < 5


def test_what_is_no_kafka_broker_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_in_another_language() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer_in_another_language)
        thread.start()
        with pytest.raises(BrokerUnavailableError, match="it is not a Kafka broker without TLS"):
            penstock.connect(f"kafka://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(TIMEOUT_S)


def test_a_host_that_does_not_answer_is_passed_over_for_one_that_does(server: Penstock) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = unused.getsockname()[1]
        with penstock.connect(f"kafka://127.0.0.1:{dead},{server.bootstrap}") as stream:
            assert isinstance(stream.topics(), list)


def test_an_idle_broker_forgets_its_address(folder: Path) -> None:
    with connect(folder):
        address = last_address(folder)
        assert address is not None
        assert address.pid == owner_pid(folder)
        assert address.exit_when_idle_s == IDLE_S
    wait_until_idle_broker_ends(folder)
    assert find(folder) is None
