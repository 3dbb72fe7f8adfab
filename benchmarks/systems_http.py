"""Webhooks through Penstock, against bare aiohttp: requests that are received, stored and sent."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any, Final

import aiohttp
from aiohttp import web

from benchmarks.report import Report, Row
from penstock.abc import Acknowledging
from penstock.channels import open_channel
from penstock.channels.inbox import Inbox
from penstock.model import NewRecord

COUNT: Final = 10_000
BODY: Final = b'{"order": 12345, "customer": "ann", "amount": 99.5, "currency": "EUR"}' + b" " * 30
CONCURRENCY: Final = 32
BAR: Final = 0.5
_START_S: Final = 30.0

Server = Callable[[int, str, Any], None]


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    count = max(500, round(COUNT * scale))
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for turn in range(rounds):
            for what, seconds in _round(count, f"{folder}/{turn}").items():
                rates.setdefault(what, []).append(count / seconds)
                say(f"  {what}: {count / seconds:,.0f} requests/s")
    median = {what: statistics.median(found) for what, found in rates.items()}
    for what, ours_is, theirs in (
        ("receive", "http:// URL, listen and acknowledge", "aiohttp receive"),
        ("store", "http:// URL into a durable inbox", "aiohttp receive"),
        ("send", "http:// URL, one send of all records", "aiohttp send"),
    ):
        title = f"Webhooks, {what}, {len(BODY)} B bodies, {CONCURRENCY} requests at a time"
        theirs_is = "aiohttp, which stores nothing" if what == "store" else "aiohttp"
        row = Row(title, median[f"penstock {what}"], ours_is, median[theirs], theirs_is, "requests/s", BAR)
        say("  " + row.line())
        report.rows.append(row)
    report.notes.append(
        f"aiohttp {aiohttp.__version__} on both sides of HTTP/1.1 over loopback, one process each. The inbox is an "
        "embedded log whose broker writes each batch to disk (acks=all) before the requests are answered."
    )


def _round(count: int, folder: str) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for what, server in (
        ("aiohttp receive", serve_plainly),
        ("penstock receive", serve_a_channel),
        ("penstock store", serve_an_inbox),
    ):
        with _serving(server, folder) as url:
            asyncio.run(_post(url, 200))
            began_s = time.perf_counter()
            asyncio.run(_post(url, count))
            seconds[what] = time.perf_counter() - began_s
    with _serving(serve_plainly, folder) as url:
        began_s = time.perf_counter()
        asyncio.run(_post(url, count))
        seconds["aiohttp send"] = time.perf_counter() - began_s
        channel = open_channel(f"{url}?concurrency={CONCURRENCY}")
        records = [NewRecord("hooks", BODY) for _ in range(count)]
        began_s = time.perf_counter()
        channel.send(records)
        seconds["penstock send"] = time.perf_counter() - began_s
        channel.close()
    return seconds


async def _post(url: str, count: int) -> None:
    left = iter(range(count))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONCURRENCY)) as session:

        async def post() -> None:
            for _ in left:
                async with session.post(url, data=BODY, headers={"content-type": "application/json"}) as response:
                    assert response.status == 200
                    await response.read()

        await asyncio.gather(*(post() for _ in range(CONCURRENCY)))


@contextmanager
def _serving(server: Server, folder: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=server, args=(port, folder, stop))
    process.start()
    try:
        _wait_for(port)
        yield f"http://127.0.0.1:{port}/hooks"
    finally:
        stop.set()
        process.join(30)


def _wait_for(port: int) -> None:
    deadline_s = time.monotonic() + _START_S
    while True:  # ends: with the deadline
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            assert time.monotonic() < deadline_s, "the server did not start"
            time.sleep(0.05)


def serve_plainly(port: int, folder: str, stop: Event) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(text="stored")

    async def serve() -> None:
        server = web.Server(handle, access_log=None)
        await asyncio.get_running_loop().create_server(server, "127.0.0.1", port)
        await asyncio.to_thread(stop.wait)

    asyncio.run(serve())


def serve_a_channel(port: int, folder: str, stop: Event) -> None:
    channel = open_channel(f"http://127.0.0.1:{port}/hooks")
    assert isinstance(channel, Acknowledging)
    while not stop.is_set():
        records = channel.listen(1_000, 0.2)
        if records:
            channel.acknowledge(records)
    channel.close()


def serve_an_inbox(port: int, folder: str, stop: Event) -> None:
    inbox = Inbox(open_channel(f"http://127.0.0.1:{port}/hooks"), f"log:{folder}")
    inbox.start()
    stop.wait()
    inbox.stop()
