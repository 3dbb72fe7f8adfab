"""`penstock serve` as a command; what it serves is tested elsewhere."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from penstock.broker import read_address
from tests.cli.running import COMMAND, Command
from tests.clients.waiting import eventually
from tests.servers import Penstock, answers

TIMEOUT_S = 60.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*COMMAND, "serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    address = read_address(tmp_path / "data")
    assert address is not None
    assert (
        said
        == f"penstock: listening on {address.bootstrap} (data {tmp_path / 'data'}, acks=all survives a power cut)\n"
    )
    assert answers(address.port)
    process.send_signal(number)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert read_address(tmp_path / "data") is None


def test_giving_up_the_sync_is_said(tmp_path: Path) -> None:
    with Penstock(tmp_path, "--flush", "os") as server:
        assert "flush=os: a power cut may lose records" in server.process.output()


def test_it_ends_by_itself_when_idle(tmp_path: Path) -> None:
    with Penstock(tmp_path, "--exit-when-idle", "0.5", "--log-format", "json") as server:
        eventually("it ends", lambda: not server.process.is_alive())
        assert server.process.popen.returncode == 0
        lines = [json.loads(line) for line in server.process.output().splitlines() if line.startswith("{")]
        assert lines[-1]["message"] == "no client for 0.5 s: stopping"


def test_a_folder_that_is_in_use_is_one_sentence(server: Penstock) -> None:
    done = Command("")("serve", "--data", str(server.data), "--listen", "127.0.0.1:0")
    assert done.code == 1
    assert done.err.startswith(f"penstock: {server.data} is in use by process {server.pid}.")


def test_a_port_that_is_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = Command("")("serve", "--data", str(tmp_path), "--listen", f"127.0.0.1:{port}")
    assert done.code == 1
    assert f"penstock: cannot listen on 127.0.0.1:{port}" in done.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--listen", "here"], "--listen 'here' is not HOST:PORT"),
        (["--listen", "0.0.0.0:0", "--insecure"], "add --advertise HOST:PORT"),
        (["--metrics", "x:y"], "--metrics 'x:y' is not HOST:PORT"),
        (["--config", "num.partitions"], "--config 'num.partitions' is not NAME=VALUE"),
        (["--config", "num.partition=3"], "num.partition"),
        (["--log-level", "loud"], "--log-level 'loud' is not one of"),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused_by_name(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    done = Command("")("serve", "--data", str(tmp_path / "data"), *arguments)
    assert done.code in (1, 2)
    assert complaint in done.err
    assert "Traceback" not in done.err
