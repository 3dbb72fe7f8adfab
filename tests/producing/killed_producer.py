"""Run as a program: producers with a spool, each forked for one order and killed in the middle of its work.

One line of JSON on standard input is one producer:

    {"url": "kafka://...", "spool": "folder", "topics": ["a", "b"], "run": 3, "count": 200, "step": "...", "nth": 2}

It sends `count` records, each numbered by its run and its place in it and `pause_s` after the one before, writes a line
for each that `send` has taken, and flushes. With a `step` it kills itself at the nth time that step is reached; see
STEPS. The order is answered by {"pid": ...}, the lines of what was taken, and {"exit": ...}.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
KEYS: Final = 5
SEGMENT_BYTES: Final = 6_000
FLUSH_S: Final = 30.0

STEPS: Final = (
    "segment begun",
    "half of a record written",
    "record written",
    "transaction begun",
    "records handed over",
    "records acknowledged",
    "progress sent",
    "transaction committed",
    "half of the position written",
    "position written",
    "segment deleted",
    "identity written",
    "segment sealed",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Countdown:
    def __init__(self, nth: int) -> None:
        self.left = nth

    def is_over(self) -> bool:
        self.left -= 1
        return self.left == 0

    def after(self, owner: Any, name: str) -> None:
        """Die once the function has returned for the nth time."""
        real = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            result = real(*arguments, **options)
            if self.is_over():
                die()
            return result

        setattr(owner, name, wrapped)

    def halfway(self, owner: Any, name: str, half: Callable[..., None]) -> None:
        """Do half of it the nth time, and die."""
        real = getattr(owner, name)

        def wrapped(*arguments: Any) -> Any:
            if self.is_over():
                half(*arguments)
                die()
            return real(*arguments)

        setattr(owner, name, wrapped)


def arm(step: str, nth: int) -> None:
    from penstock.producing.kafka import transactions as kafka_transactions
    from penstock.producing.spooling import folder, position, segment, spool

    written, delivery = segment.WrittenSegment, kafka_transactions.TransactionDelivery
    countdown = Countdown(nth)

    def half_a_batch(target: Any, batch: bytes) -> None:
        target._map[target.used : target.used + len(batch) // 2] = batch[: len(batch) // 2]

    def half_a_slot(target: Any, committed: int) -> None:
        start = (target._turn + 1) % 2 * position._SLOT_BYTES
        target._map[start : start + 10] = b"\xff" * 10

    def call_after(what: str) -> None:
        real = delivery._call

        def wrapped(self: Any, told: str, *more: Any, **options: Any) -> None:
            real(self, told, *more, **options)
            if what in told and countdown.is_over():
                die()

        delivery._call = wrapped  # type: ignore[method-assign, assignment]

    match step:
        case "segment begun":
            countdown.after(written, "__init__")
        case "half of a record written":
            countdown.halfway(written, "write", half_a_batch)
        case "record written":
            countdown.after(written, "write")
        case "transaction begun":
            call_after("started")
        case "records handed over":
            countdown.halfway(delivery, "_wait_for_reports", lambda *_: None)
        case "records acknowledged":
            countdown.after(delivery, "_wait_for_reports")
        case "progress sent":
            call_after("progress")
        case "transaction committed":
            call_after("committed")
        case "half of the position written":
            countdown.halfway(position.PositionFile, "move", half_a_slot)
        case "position written":
            countdown.after(position.PositionFile, "move")
        case "segment deleted":
            countdown.after(spool.Spool, "_delete_committed")
        case "identity written":
            countdown.after(folder, "take_identity")
            spool.take_identity = folder.take_identity  # type: ignore[attr-defined]
        case "segment sealed":
            countdown.after(written, "seal")
        case _:
            raise ValueError(step)


def produce(order: dict[str, Any], taken: int) -> None:
    from penstock.producing.producer import Producer
    from penstock.producing.spooling import Spool

    if order.get("step"):
        arm(order["step"], order["nth"])
    topics = order["topics"]
    pause = threading.Event()
    spool = Spool(Path(order["spool"]), segment_bytes=SEGMENT_BYTES)
    with Producer(order["url"], buffer=spool, linger_ms=order.get("linger_ms", 1), batch_records=40) as producer:
        for number in range(order["count"]):
            key = f"key-{number % KEYS}"
            producer.send(topics[number % len(topics)], f"{order['run']} {number}", key)
            os.write(taken, f"{number}\n".encode())
            pause.wait(order.get("pause_s", 0))
        producer.flush(order.get("flush_s", FLUSH_S))
    spool.close()


def run(line: str) -> None:
    order = json.loads(line)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sink = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    taken = os.dup(1)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    logging.basicConfig(level=logging.INFO)
    produce(order, taken)


def serve_orders() -> None:
    import penstock.producing.producer  # noqa: F401

    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(line)
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.write(1, (json.dumps({"pid": pid}) + "\n").encode())
        _, status = os.waitpid(pid, 0)
        os.write(1, (json.dumps({"exit": os.waitstatus_to_exitcode(status)}) + "\n").encode())


if __name__ == "__main__":
    serve_orders()
