"""ZeroMQ and nng channels through Penstock, against plain sockets: records to another process, and requests to one."""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from typing import Any, Final

import pynng
import zmq

from benchmarks.report import Report, Row
from penstock.channels import open_channel
from penstock.model import NewRecord

COUNT: Final = 200_000
REQUESTS: Final = 10_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 500
_VALUE: Final = b"x" * RECORD_BYTES
_START_S: Final = 60.0
_SYSTEMS: Final = {"zmq": "ZeroMQ", "nng": "nng"}
_WHATS: Final = {
    "many": (f"pipeline, {AT_ONCE} records a call", "records/s"),
    "single": ("pipeline, one record a call", "records/s"),
    "asked": (f"request, {AT_ONCE} records a call", "records/s"),
    "request": ("request, one record a call", "records/s"),
}
_BARS: Final = {"many": 0.2, "single": 0.03, "asked": 1.0, "request": 0.2}
"""A plain socket of ZeroMQ makes no record of what it receives, and carries messages in C alone."""


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    rates: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(rounds):
        for system in _SYSTEMS:
            for what in _WHATS:
                whole = COUNT if what in ("many", "single") else REQUESTS
                count = max(AT_ONCE, round(whole * scale) // AT_ONCE * AT_ONCE)
                for who in ("penstock", "plain"):
                    rate = count / _seconds(system, what, who, count)
                    rates.setdefault((system, what, who), []).append(rate)
                    say(f"  {system} {what} {who}: {rate:,.0f}/s")
    for system, title in _SYSTEMS.items():
        for what, (described, unit) in _WHATS.items():
            ours, theirs = (statistics.median(rates[system, what, who]) for who in ("penstock", "plain"))
            row = Row(
                f"{title}, {described}",
                ours,
                f"{system}+tcp:// URL",
                theirs,
                f"plain {title} sockets",
                unit,
                _BARS[what],
            )
            say("  " + row.line())
            report.rows.append(row)
    report.notes.append(
        f"{RECORD_BYTES} B records over loopback between two processes, pyzmq {zmq.__version__} with libzmq "
        f"{zmq.zmq_version()}, pynng {pynng.__version__}. Plain sockets (PUSH and PULL, REQ and REP) send a message "
        "for each record; Penstock sends the records of a call in frames of 64 KiB, with key, headers and time."
    )


def _seconds(system: str, what: str, who: str, count: int) -> float:
    """From the first record to the last one, where they arrive; of requests, where they are made."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    other = context.Process(
        target=_push if what in ("many", "single") else _serve, args=(system, what, who, port, count, ready)
    )
    other.start()
    try:
        if what in ("many", "single"):
            return _pull(system, who, port, count, ready)
        return _ask(system, what, who, port, count, ready)
    finally:
        other.join(_START_S)
        other.kill()


def _push(system: str, what: str, who: str, port: int, count: int, ready: Event) -> None:
    ready.wait(_START_S)
    if who == "plain":
        sender = _plain(system, "PUSH", f"tcp://127.0.0.1:{port}", bind=False)
        for _ in range(count):
            sender.send(_VALUE)
        time.sleep(1.0)  # nng drops what is under way when a socket is closed
        sender.close()
        return
    channel = open_channel(f"{system}+tcp://127.0.0.1:{port}/bench?pattern=pipeline")
    at_once = AT_ONCE if what == "many" else 1
    for _ in range(count // at_once):
        channel.send([NewRecord("bench", _VALUE) for _ in range(at_once)])
    channel.close()


def _pull(system: str, who: str, port: int, count: int, ready: Event) -> float:
    if who == "plain":
        listener = _plain(system, "PULL", f"tcp://127.0.0.1:{port}", bind=True)
        ready.set()
        assert listener.recv() == _VALUE
        started_s = time.perf_counter()
        for _ in range(count - 1):
            assert listener.recv() == _VALUE
        seconds = time.perf_counter() - started_s
        listener.close()
        return seconds
    channel = open_channel(f"{system}+tcp://127.0.0.1:{port}/bench?pattern=pipeline")
    channel.listen(1, 0.0)
    ready.set()
    left = count - len(channel.listen(AT_ONCE, _START_S))
    started_s = time.perf_counter()
    while left:
        records = channel.listen(AT_ONCE, _START_S)
        assert records, f"{left} records did not arrive"
        for record in records:
            assert record.value == _VALUE
        left -= len(records)
    seconds = time.perf_counter() - started_s
    channel.close()
    return seconds


def _serve(system: str, what: str, who: str, port: int, count: int, ready: Event) -> None:
    if who == "plain":
        server = _plain(system, "REP", f"tcp://127.0.0.1:{port}", bind=True)
        ready.set()
        for _ in range(count):
            assert server.recv() == _VALUE
            server.send(b"OK")
        time.sleep(1.0)
        server.close()
        return
    channel: Any = open_channel(f"{system}+tcp://127.0.0.1:{port}/bench?pattern=request")
    channel.listen(1, 0.0)
    ready.set()
    left = count
    while left:
        records = channel.listen(AT_ONCE, _START_S)
        channel.acknowledge(records)
        left -= len(records)
    channel.close()


def _ask(system: str, what: str, who: str, port: int, count: int, ready: Event) -> float:
    ready.wait(_START_S)
    if who == "plain":
        client = _plain(system, "REQ", f"tcp://127.0.0.1:{port}", bind=False)
        started_s = time.perf_counter()
        for _ in range(count):
            client.send(_VALUE)
            assert client.recv() == b"OK"
        seconds = time.perf_counter() - started_s
        client.close()
        return seconds
    channel = open_channel(f"{system}+tcp://127.0.0.1:{port}/bench?pattern=request")
    started_s = time.perf_counter()
    at_once = AT_ONCE if what == "asked" else 1
    for _ in range(count // at_once):
        channel.send([NewRecord("bench", _VALUE) for _ in range(at_once)])
    seconds = time.perf_counter() - started_s
    channel.close()
    return seconds


def _plain(system: str, kind: str, address: str, *, bind: bool) -> Any:
    if system == "zmq":
        made: Any = zmq.Context.instance().socket(getattr(zmq, kind))
        (made.bind if bind else made.connect)(address)
        return made
    made = getattr(pynng, f"{kind.capitalize()}0")(recv_timeout=int(_START_S * 1000))
    if bind:
        made.listen(address)
    else:
        made.dial(address, block=False)
    return made
