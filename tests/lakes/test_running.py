"""`penstock run` and `penstock up` run programs that define sinks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock
from penstock.supervising.finding import programs_in
from tests.lakes.readers import FORMATS, rows_of, uri_of

PROGRAM = """
from penstock.lakes import LakeSink

sink = LakeSink("log:./data", "orders", {uri!r}, group="lake", flush_s=0.1)
"""


@pytest.mark.parametrize("form", FORMATS)
def test_a_program_that_defines_a_sink_is_run_until_it_is_told_to_stop(form: str, tmp_path: Path) -> None:
    uri = uri_of(form, tmp_path / "lake")
    program = tmp_path / "lake.py"
    program.write_text(PROGRAM.format(uri=uri))
    assert [each.file for each in programs_in([tmp_path])] == [program]
    with penstock.connect(f"log:{tmp_path}/data") as stream:
        stream.admin().provide("orders", 1, {})
        for number in range(10):
            stream.send("orders", json.dumps({"id": number}).encode())
        stream.flush(30)
        command = [sys.executable, "-m", "penstock.cli", "run", str(program)]
        with (
            open(tmp_path / "output.txt", "wb") as output,
            subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output, env=dict(os.environ)) as process,
        ):
            try:
                waiting = threading.Event()
                while len(rows_of(uri)) < 10:
                    assert process.poll() is None, (tmp_path / "output.txt").read_text()
                    waiting.wait(0.1)
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0, (tmp_path / "output.txt").read_text()
            finally:
                process.kill()
    assert sorted(row["id"] for row in rows_of(uri)) == list(range(10))
