"""The programs of the design run as they are written there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import penstock

PROGRAM = """
import dataclasses

import penstock as ps


@dataclasses.dataclass
class Order:
    customer: str
    cups: int


orders = ps.Topic("orders", Order, key=lambda o: o.customer)

with ps.connect("log:./data") as stream:
    receipt = stream.send(orders, Order("ada", 2))
    receipt.result(timeout=30)

app = ps.App("log:./data", group="billing")


@app.handle(
    orders, order="key", workers=8, retry=ps.Retry(5), dead_letters="orders.dlq", guarantee="at-least-once"
)
def bill(order: Order) -> None:
    if order.cups == 0:
        raise ps.Reject("nothing to bill")
    print("billed", order.customer, order.cups, flush=True)


app.run()
print("drained", flush=True)
"""


def test_the_program_of_the_design_sends_handles_and_drains_on_sigterm(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "billed ada 2\n"
        with penstock.connect(f"log:{tmp_path / 'data'}") as stream:
            stream.send("orders", {"customer": "bob", "cups": 0}, key="bob")
            stream.send("orders", {"customer": "bob", "cups": 3}, key="bob")
            stream.flush()
            assert process.stdout.readline() == "billed bob 3\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "drained\n"
            assert process.wait() == 0
            (letter,) = stream.read("orders.dlq")
            assert letter.value == b'{"customer":"bob","cups":0}'
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()


SLOW = """
import os
import threading

import penstock as ps

app = ps.App("log:./data", group="slow")
done = []


@app.handle("numbers", order="key", workers=2)
def handle(value: bytes) -> None:
    os.write(1, b"begun " + value + b"\\n")
    threading.Event().wait(1.0)
    done.append(value)


app.run()
print("finished", len(done), flush=True)
"""


def test_sigterm_lets_handlers_finish_what_they_have_in_hand_and_nothing_is_lost(tmp_path: Path) -> None:
    with penstock.connect(f"log:{tmp_path / 'data'}", exit_when_idle_s=60) as stream:
        for number in range(6):
            stream.send("numbers", str(number), key=str(number))
        stream.flush()
        seen: list[str] = []
        finished = 0
        for _ in range(10):
            if finished == 6:
                break
            process = subprocess.Popen(
                [sys.executable, "-c", SLOW],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            watchdog = threading.Timer(120, process.kill)
            watchdog.start()
            assert process.stdout is not None
            for line in process.stdout:
                word, rest = line.split()
                if word == "begun":
                    seen.append(rest)
                    process.send_signal(signal.SIGTERM)
                else:
                    finished += int(rest)
            watchdog.cancel()
            assert process.wait() == 0
    assert sorted(seen) == ["0", "1", "2", "3", "4", "5"]
