"""Addresses that outlive their brokers are not believed, and brokers that die are replaced."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock.broker import BrokerAddress, last_address
from penstock.errors import BrokerUnavailableError
from penstock.streams.embedded.finding import find, is_owned, owner_pid
from tests.clients.waiting import eventually
from tests.servers import Penstock
from tests.streams.embedded import IDLE_S, broker_pid, kill_broker, stop_broker, url

TIMEOUT_S = 30.0
ADDRESS_FILE = "broker.json"


def connect(folder: Path) -> penstock.Connection:
    return penstock.connect(url(folder), exit_when_idle_s=IDLE_S)


def values(stream: penstock.Connection, topic: str = "greetings") -> list[bytes | None]:
    return [record.value for record in stream.read(topic)]


def a_folder_whose_broker_was_killed(folder: Path) -> BrokerAddress:
    """One record in it, and the address of a broker that is dead."""
    with Penstock(folder.parent / "by-hand") as server:
        with penstock.connect(f"kafka://{server.bootstrap}") as stream:
            stream.send("greetings", "hello").result(TIMEOUT_S)
        server.kill()
        server.data.rename(folder)
    address = last_address(folder)
    assert address is not None
    return address


def leave_address(folder: Path, address: BrokerAddress) -> None:
    (folder / ADDRESS_FILE).write_bytes(msgspec.json.encode(address))


@contextmanager
def something_that_is_no_broker(port: int = 0) -> Iterator[int]:
    """Takes connections at a port, and answers none."""
    listener = socket.create_server(("127.0.0.1", port))
    taken: list[socket.socket] = []

    def take() -> None:
        while True:
            try:
                taken.append(listener.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(TIMEOUT_S)
        for each in taken:
            each.close()


def check_replaced(folder: Path, dead: BrokerAddress) -> None:
    """A new broker serves the folder, with what was in it."""
    with connect(folder) as stream:
        assert values(stream) == [b"hello"]
        assert broker_pid(folder) != dead.pid


def test_of_several_brokers_one_that_hangs_does_not_keep_a_client_from_connecting(tmp_path: Path) -> None:
    with something_that_is_no_broker() as hanging, Penstock(tmp_path) as server:
        began_s = time.monotonic()
        with penstock.connect(f"kafka://127.0.0.1:{hanging},{server.bootstrap}", connect_timeout_s=TIMEOUT_S) as stream:
            assert time.monotonic() - began_s < TIMEOUT_S / 2
            stream.send("greetings", "hello").result(TIMEOUT_S)
        with pytest.raises(BrokerUnavailableError, match="does not answer"):
            penstock.connect(f"kafka://127.0.0.1:{hanging},127.0.0.1:{hanging}", connect_timeout_s=1)


def test_a_killed_broker_is_replaced(folder: Path) -> None:
    dead = a_folder_whose_broker_was_killed(folder)
    assert find(folder) is None
    check_replaced(folder, dead)


def test_a_process_id_that_was_given_to_somebody_else_is_not_believed(folder: Path) -> None:
    dead = a_folder_whose_broker_was_killed(folder)
    leave_address(folder, msgspec.structs.replace(dead, pid=os.getpid()))
    assert find(folder) is None
    check_replaced(folder, dead)


def test_a_port_that_was_given_to_somebody_else_is_not_believed(folder: Path) -> None:
    dead = a_folder_whose_broker_was_killed(folder)
    (folder / "lock").write_text(f"{os.getpid()}\n")
    with something_that_is_no_broker(dead.port):
        leave_address(folder, msgspec.structs.replace(dead, pid=os.getpid()))
        check_replaced(folder, dead)


def test_a_port_that_was_given_to_another_folders_broker_is_not_believed(folder: Path, tmp_path: Path) -> None:
    dead = a_folder_whose_broker_was_killed(folder)
    with Penstock(tmp_path / "another", port=dead.port) as another:
        (folder / "lock").write_text(f"{another.pid}\n")
        leave_address(folder, msgspec.structs.replace(dead, pid=another.pid))
        check_replaced(folder, dead)


def test_the_broker_of_a_copied_folder_is_not_that_of_the_copy(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    try:
        with connect(folder) as original:
            original.send("greetings", "hello").result(TIMEOUT_S)
            shutil.copytree(folder, copy)
            with connect(copy) as copied:
                assert copied.bootstrap != original.bootstrap
                copied.send("greetings", "only here").result(TIMEOUT_S)
                assert values(copied) == [b"hello", b"only here"]
            assert values(original) == [b"hello"]
    finally:
        stop_broker(copy)


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b'{"pid":1}', b"\x00" * 100])
def test_an_address_file_that_is_damaged_is_replaced(folder: Path, content: bytes) -> None:
    dead = a_folder_whose_broker_was_killed(folder)
    (folder / ADDRESS_FILE).write_bytes(content)
    check_replaced(folder, dead)


def test_a_connection_survives_its_broker_being_killed(folder: Path) -> None:
    """Records that were acknowledged are there, those under way arrive, and none arrives twice."""
    with connect(folder) as stream:
        for number in range(100):
            stream.send("numbers", str(number))
        stream.flush(TIMEOUT_S)
        for number in range(100, 200):
            stream.send("numbers", str(number))
        killed = kill_broker(folder)
        for number in range(200, 300):
            stream.send("numbers", str(number))
        stream.flush(TIMEOUT_S)
        assert [int(value or b"") for value in values(stream, "numbers")] == list(range(300))
        assert broker_pid(folder) != killed


def test_all_connections_survive_and_share_the_next_broker(folder: Path) -> None:
    with connect(folder) as first, connect(folder) as second:
        first.send("greetings", "before").result(TIMEOUT_S)
        for _ in range(2):
            kill_broker(folder)
            first.send("greetings", "first").result(TIMEOUT_S)
            second.send("greetings", "second").result(TIMEOUT_S)
        assert len(values(first)) == 5
        with connect(folder) as third:
            assert third.bootstrap == first.bootstrap


def test_clients_that_come_and_go_lose_and_repeat_nothing_while_brokers_are_killed(folder: Path) -> None:
    """Some are connecting, some sending, some reading and some leaving when it happens."""
    stopping = threading.Event()
    sent: list[str] = []
    errors: list[BaseException] = []

    def come_and_go(name: int) -> None:
        number = 0
        try:
            while not stopping.is_set():
                with connect(folder) as stream:
                    for _ in range(3):
                        word = f"{name}:{number}"
                        stream.send("words", word).result(60)
                        sent.append(word)
                        number += 1
                    values(stream, "words")
        except BaseException as error:
            errors.append(error)
            raise

    with connect(folder) as witness:
        witness.create_topic("words")
        threads = [threading.Thread(target=come_and_go, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        for kill in range(4):
            enough = functools.partial(_has_grown, sent, errors, len(sent) + 1)
            eventually(f"something is sent before kill {kill}", enough, timeout_s=60)
            eventually("a broker serves the folder", lambda: is_owned(folder))
            kill_broker(folder)
        stopping.set()
        for thread in threads:
            thread.join(120)
        assert not errors
        stored = [(value or b"").decode() for value in values(witness, "words")]
    assert sorted(stored) == sorted(sent)


def _has_grown(sent: list[str], errors: list[BaseException], count: int) -> bool:
    return len(sent) >= count or bool(errors)


def test_a_connection_survives_its_broker_being_ended(folder: Path) -> None:
    with connect(folder) as stream:
        stream.send("greetings", "before").result(TIMEOUT_S)
        pid = broker_pid(folder)
        os.kill(pid, signal.SIGTERM)
        eventually(
            "another broker serves the folder", lambda: is_owned(folder) and owner_pid(folder) not in (None, pid)
        )
        stream.send("greetings", "after").result(TIMEOUT_S)
        assert values(stream) == [b"before", b"after"]


def test_a_connection_whose_broker_comes_back_elsewhere_says_so(folder: Path) -> None:
    with connect(folder) as stream:
        stream.send("greetings", "hello").result(TIMEOUT_S)
        port = int(stream.bootstrap.rpartition(":")[2])
        os.kill(broker_pid(folder), signal.SIGSTOP)
        # Its port is taken the moment it is free.
        under_way = stream.send("greetings", "never arrives")
        with socket.socket() as taker:
            taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kill_and_take(folder, taker, port)

            def refused() -> bool:
                try:
                    stream.flush(0)
                except BrokerUnavailableError as error:
                    return "was restarted at another port" in str(error)
                except TimeoutError:
                    return False
                return False

            eventually("the connection says what happened", refused)
            with pytest.raises(penstock.DeliveryError, match="was restarted at another port"):
                under_way.result(TIMEOUT_S)
        with connect(folder) as again:
            assert values(again) == [b"hello"]


def kill_and_take(folder: Path, taker: socket.socket, port: int) -> None:
    os.kill(broker_pid(folder), signal.SIGKILL)

    def taken() -> bool:
        try:
            taker.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

    eventually("the port is free", taken)
    taker.listen()


def test_a_broker_that_was_started_by_hand_is_not_started_again_by_its_clients(tmp_path: Path) -> None:
    with Penstock(tmp_path) as server, connect(server.data) as stream:
        stream.send("greetings", "before").result(TIMEOUT_S)
        server.terminate()
        under_way = stream.send("greetings", "while it is away")
        with pytest.raises(TimeoutError):
            under_way.result(1)
        assert not is_owned(server.data)
        server.start()
        under_way.result(TIMEOUT_S)
        assert values(stream) == [b"before", b"while it is away"]
