"""A data folder that is removed while its broker runs: the broker ends, and the next one has the folder to itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock.broker import last_address
from penstock.errors import BrokerUnavailableError
from tests.broker.plain_requests import create_topic, produce
from tests.clients.waiting import eventually
from tests.servers import Penstock
from tests.streams.embedded import IDLE_S, broker_pid, url

TIMEOUT_S: Final = 30.0
ADDRESS_FILE: Final = "broker.json"


def remove(folder: Path) -> None:
    """As people do it, whatever the broker does at the same time."""
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def is_running(pid: int) -> bool:
    """Whether the process is there and not merely waiting to be reaped."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_folder_can_be_removed_and_used_again_at_once_any_number_of_times(folder: Path) -> None:
    brokers: list[int] = []
    for number in range(5):
        with penstock.connect(url(folder), exit_when_idle_s=IDLE_S) as stream:
            stream.send("numbers", str(number)).result(TIMEOUT_S)
            assert [record.value for record in stream.read("numbers")] == [str(number).encode()]
        brokers.append(broker_pid(folder))
        remove(folder)
    assert len(set(brokers)) == len(brokers)
    with penstock.connect(url(folder), exit_when_idle_s=IDLE_S) as stream:
        eventually("the brokers of the removed folders end", lambda: not any(map(is_running, brokers)), TIMEOUT_S)
        address = last_address(folder)
        assert address is not None, "a broker took away the address of another"
        assert address.bootstrap == stream.bootstrap
        with penstock.connect(url(folder)) as another:
            assert another.bootstrap == stream.bootstrap
            assert another.topics() == []


def test_a_connection_does_not_bring_a_removed_folder_back(folder: Path) -> None:
    with penstock.connect(url(folder), exit_when_idle_s=IDLE_S) as stream:
        stream.send("numbers", "1").result(TIMEOUT_S)
        broker = broker_pid(folder)
        remove(folder)
        eventually("the broker ends", lambda: not is_running(broker), TIMEOUT_S)
        eventually("the connection knows why", lambda: _says_removed(stream, folder), TIMEOUT_S)
        assert not folder.exists()


def _says_removed(stream: penstock.Connection, folder: Path) -> bool:
    with pytest.raises((BrokerUnavailableError, TimeoutError)) as raised:
        stream.send("numbers", "2").result(1)
    return f"the data folder {folder} was removed" in str(raised.value)


def test_a_broker_whose_folder_is_removed_says_so_and_ends_without_a_trace(tmp_path: Path) -> None:
    with Penstock(tmp_path) as server:
        produce(server, create_topic(server), [b"one"])
        remove(server.data)
        eventually("the broker ends", lambda: not server.process.is_alive(), TIMEOUT_S)
        assert server.process.popen.returncode == 1
        said = server.process.output()
        assert f"the data folder {server.data} was removed or replaced while this broker (process {server.pid})" in said
        assert "Traceback" not in said
        assert not server.data.exists()


def test_a_broker_never_writes_into_a_folder_that_took_the_place_of_its_own(tmp_path: Path) -> None:
    with Penstock(tmp_path) as server:
        produce(server, create_topic(server), [b"one"])
        remove(server.data)
        server.data.mkdir()
        (server.data / "lock").touch()
        (server.data / ADDRESS_FILE).write_bytes(b"that of another broker")
        server.terminate()
        left = {path.name: path.read_bytes() for path in server.data.iterdir()}
        assert left == {"lock": b"", ADDRESS_FILE: b"that of another broker"}


def test_an_address_that_somebody_removes_comes_back(tmp_path: Path) -> None:
    with Penstock(tmp_path) as server:
        address = last_address(server.data)
        (server.data / ADDRESS_FILE).unlink()
        eventually("the broker writes its address again", lambda: last_address(server.data) == address, TIMEOUT_S)


def test_who_holds_the_folder_is_named_to_those_who_cannot_connect(folder: Path) -> None:
    folder.mkdir()
    holder = (
        "import sys, time; from pathlib import Path; from penstock.log.store import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(BrokerUnavailableError, match=rf"{folder} is in use by process {process.pid}"):
            penstock.connect(url(folder), connect_timeout_s=3)
        process.kill()
