"""The servers of the tests themselves: they come back where they were, are shared, and are never left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients import confluent
from tests.clients.shared_server import shared
from tests.clients.waiting import eventually
from tests.servers import Penstock, ServerError, answers
from tools.parts import ROOT

STARTS_ONE_AND_WAITS = """
import sys
from pathlib import Path
from tests.servers import Penstock
with Penstock(Path(sys.argv[1])) as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""

SHARES_ONE = """
import sys
from pathlib import Path
from tests.clients.shared_server import shared
from tests.servers import Penstock, answers
folder = Path(sys.argv[1])
with shared(folder, lambda: Penstock(folder)) as server:
    print(server.port, flush=True)
    sys.stdin.read()
    assert answers(server.port)
"""


def python(script: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    with python(STARTS_ONE_AND_WAITS, tmp_path) as starter:
        pid = first_line(starter)
        assert Path(f"/proc/{pid}").exists()
        starter.kill()
    eventually("the server is gone", lambda: not Path(f"/proc/{pid}").exists())


def test_a_killed_broker_comes_back_with_its_port_and_its_records(tmp_path: Path) -> None:
    with Penstock(tmp_path) as server:
        topic, port = confluent.create_topic(server), server.port
        assert confluent.produce(server, topic, [b"before"]) == [0]
        server.kill()
        assert not answers(port)
        server.restart()
        assert server.port == port
        assert confluent.values_of(confluent.read_to_end(server, topic)) == [b"before"]
        assert server.terminate() == 0


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"no\.such\.setting"):
        Penstock(tmp_path, "--config", "no.such.setting=1").start()


def test_one_server_is_shared_until_its_last_user_is_done(tmp_path: Path) -> None:
    with python(SHARES_ONE, tmp_path) as first, python(SHARES_ONE, tmp_path) as second:
        port = first_line(first)
        assert first_line(second) == port
        with shared(tmp_path, lambda: Penstock(tmp_path)) as server:
            assert server.port == port
            # Whichever of the two has started it, it stays for as long as we are here.
            for process in (first, second):
                assert process.stdin is not None
                process.stdin.close()
            eventually("one of them is done", lambda: first.poll() is not None or second.poll() is not None)
            assert answers(port)
        assert (first.wait(30), second.wait(30)) == (0, 0)
    assert not answers(port)
