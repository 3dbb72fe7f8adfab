"""A supervised pipeline whose driver is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.model.processes import session_members
from tests.consuming.eventually import wait_until
from tests.servers import Penstock, free_ports

TIMEOUT_S = 400.0
PROGRAM = """
from penstock.spark import Pipeline

pipe = Pipeline("copies", {url!r}, checkpoints={checkpoints!r})
pipe.write(pipe.read("numbers").select("value"), "copies")
"""


def ask(address: str, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)
    except OSError:
        return {}


@pytest.mark.timeout(900)
@pytest.mark.sampled(1, among="killed drivers")
def test_a_killed_driver_is_started_again_and_each_record_is_copied_once(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with Penstock(tmp_path / "data") as server, penstock.connect(f"kafka://{server.bootstrap}") as stream:
        stream.create_topic("numbers")

        def send(numbers: range) -> None:
            for number in numbers:
                stream.send("numbers", str(number))
            stream.flush(30)

        def copied() -> list[str]:
            return (
                [(record.value or b"").decode() for record in stream.read("copies")]
                if "copies" in stream.topics()
                else []
            )

        file = tmp_path / "copies.py"
        file.write_text(PROGRAM.format(url=f"kafka://{server.bootstrap}", checkpoints=str(tmp_path / "checkpoints")))
        command = [sys.executable, "-m", "penstock.cli", "run", "--supervise", str(file), "--health", address]
        command += ["--logs", str(tmp_path / "logs"), "--master", "local[1]", "--quiet"]
        supervisor = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            send(range(100))
            wait_until(lambda: len(copied()) == 100, TIMEOUT_S)
            wait_until(lambda: ask(address, "/readyz").get("status") == "ok", TIMEOUT_S)
            (program,) = ask(address, "/programs")["programs"]
            driver = program["pid"]
            jvm_and_others = list(session_members(driver))
            assert jvm_and_others, "the JVM is in the session of the driver"
            os.kill(driver, signal.SIGKILL)
            send(range(100, 200))
            wait_until(lambda: len(copied()) >= 200, TIMEOUT_S)
            assert sorted(map(int, copied())) == list(range(200))
            assert list(session_members(driver)) == []
            (program,) = ask(address, "/programs")["programs"]
            assert (program["restarts"], program["last_error"]) == (1, "killed by SIGKILL")
            second = program["pid"]
            supervisor.terminate()
            _, told = supervisor.communicate(timeout=TIMEOUT_S)
            assert supervisor.returncode == 0, told
            assert list(session_members(second)) == []
        finally:
            supervisor.kill()
            supervisor.communicate(timeout=TIMEOUT_S)
