"""UDP channels through Penstock, against bare sockets: records from one process to another; and StatsD's metrics in."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any, Final

from benchmarks.report import Report, Row
from penstock.channels import open_channel
from penstock.model import NewRecord

COUNT: Final = 200_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 500
METRIC: Final = b"shop.orders.placed:%d|c|#region:eu,kind:web"
METRIC_PARTS: Final = re.compile(r":|\|#?")
METRICS_AT_ONCE: Final = 20
HOST: Final = "127.0.0.1"
SOCKET_BYTES: Final = 8 << 20
BAR: Final = 0.5
_SILENT_S: Final = 1.0
"""Bare datagrams may be lost: when none arrives for so long, that was all."""
_START_S: Final = 60.0

Work = Callable[[int, int, Any], tuple[int, float]]
"""Receives so many records at a port, and tells how many came, in how many seconds. It waits at the barrier before."""


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    os.environ["PENSTOCK_BENCHMARK_SECRET"] = "0123456789abcdef"
    count = max(AT_ONCE, round(COUNT * scale) // AT_ONCE * AT_ONCE)
    rates: dict[str, list[float]] = {}
    lost: dict[str, list[float]] = {}
    for _ in range(rounds):
        for what, (send, receive) in WAYS.items():
            came, seconds = _measured(send, receive, count)
            rates.setdefault(what, []).append(came / seconds)
            lost.setdefault(what, []).append(1 - came / count)
            say(f"  {what}: {came / seconds:,.0f} records/s, {1 - came / count:.1%} lost")
    for title, ours, ours_is, theirs, theirs_is in (
        (f"UDP, {RECORD_BYTES} B records", "udp", "udp:// URL", "bare", "a socket, a datagram for each record"),
        ("UDP, signed", "udp signed", "udp:// URL with a secret", "bare", "a socket, a datagram for each record"),
        ("UDP, raw datagrams", "udp raw", "udp:// URL with raw=true", "bare", "a socket"),
        ("StatsD, metrics", "statsd", "statsd:// URL", "bare statsd", "a socket, re and json"),
    ):
        row = Row(
            f"{title}, one sender and one receiver",
            statistics.median(rates[ours]),
            f"{ours_is}, {statistics.median(lost[ours]):.1%} lost",
            statistics.median(rates[theirs]),
            f"{theirs_is}, {statistics.median(lost[theirs]):.1%} lost",
            "records/s",
            BAR,
        )
        say("  " + row.line())
        report.rows.append(row)
    report.notes.append(
        f"Records that arrived, a second, over loopback between two processes. udp:// sends {AT_ONCE} records a call, "
        f"in datagrams of 1400 B, and recovers what is lost. Metrics arrive {METRICS_AT_ONCE} in a datagram, and each "
        "becomes a record of JSON; beside a bare socket, a regular expression and the json module do the same."
    )


def _measured(send: Callable[[int, int], None], receive: Work, count: int) -> tuple[int, float]:
    context = multiprocessing.get_context("spawn")
    barrier: Barrier = context.Barrier(2)
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    process = context.Process(target=_send, args=(send, port, count, barrier), daemon=True)
    process.start()
    found = receive(port, count, barrier)
    process.join(_START_S)
    return found


def _send(send: Callable[[int, int], None], port: int, count: int, barrier: Barrier) -> None:
    barrier.wait(_START_S)
    send(port, count)


def send_by_channel(port: int, count: int, settings: str = "") -> None:
    channel = open_channel(f"udp://{HOST}:{port}{settings}")
    value = b"x" * RECORD_BYTES
    for _ in range(0, count, AT_ONCE):
        channel.send([NewRecord("udp", value) for _ in range(AT_ONCE)])
    channel.close()


SIGNED: Final = "?secret_env=PENSTOCK_BENCHMARK_SECRET"


def send_signed(port: int, count: int) -> None:
    send_by_channel(port, count, SIGNED)


def send_bare(port: int, count: int) -> None:
    value = b"x" * RECORD_BYTES
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        for _ in range(count):
            sender.sendto(value, (HOST, port))


def send_metrics(port: int, count: int) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        for start in range(0, count, METRICS_AT_ONCE):
            lines = [METRIC % number for number in range(start, start + METRICS_AT_ONCE)]
            sender.sendto(b"\n".join(lines), (HOST, port))


def receive_by_channel(port: int, count: int, barrier: Barrier, url: str = "udp://{}:{}") -> tuple[int, float]:
    channel = open_channel(url.format(HOST, port))
    channel.listen(1, 0.0)
    barrier.wait(_START_S)
    began_s = last_s = time.perf_counter()
    came = 0
    while came < count:
        records = channel.listen(1_000, _SILENT_S)
        if not records:
            break
        came += len(records)
        last_s = time.perf_counter()
    channel.close()
    return came, last_s - began_s


def receive_signed(port: int, count: int, barrier: Barrier) -> tuple[int, float]:
    return receive_by_channel(port, count, barrier, "udp://{}:{}" + SIGNED)


def receive_raw(port: int, count: int, barrier: Barrier) -> tuple[int, float]:
    return receive_by_channel(port, count, barrier, "udp://{}:{}?raw=true")


def receive_metrics(port: int, count: int, barrier: Barrier) -> tuple[int, float]:
    return receive_by_channel(port, count, barrier, "statsd://{}:{}")


def receive_bare(port: int, count: int, barrier: Barrier, at_once: int = 1) -> tuple[int, float]:
    with socket.socket(type=socket.SOCK_DGRAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        listener.bind((HOST, port))
        listener.settimeout(_SILENT_S)
        barrier.wait(_START_S)
        began_s = last_s = time.perf_counter()
        came = 0
        while came < count:
            try:
                data = listener.recv(65536)
            except TimeoutError:
                break
            came += 1 if at_once == 1 else len([_parsed(line) for line in data.split(b"\n")])
            last_s = time.perf_counter()
    return came, last_s - began_s


def _parsed(line: bytes) -> str:
    name, value, kind, tags = METRIC_PARTS.split(line.decode(), 3)
    return json.dumps({"name": name, "kind": kind, "value": float(value), "tags": tags.split(",")})


def receive_bare_metrics(port: int, count: int, barrier: Barrier) -> tuple[int, float]:
    return receive_bare(port, count, barrier, METRICS_AT_ONCE)


WAYS: Final[dict[str, tuple[Callable[[int, int], None], Work]]] = {
    "udp": (send_by_channel, receive_by_channel),
    "udp signed": (send_signed, receive_signed),
    "udp raw": (send_bare, receive_raw),
    "bare": (send_bare, receive_bare),
    "statsd": (send_metrics, receive_metrics),
    "bare statsd": (send_metrics, receive_bare_metrics),
}
