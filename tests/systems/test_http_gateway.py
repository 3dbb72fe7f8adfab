"""Gateways from and to webhooks: processes that are killed, senders that repeat, receivers that drop repeats."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest

import penstock as ps
from penstock.channels import open_channel
from penstock.channels.http.channel import HttpChannel
from penstock.channels.inbox import Inbox
from penstock.gateway import Gateway
from penstock.testing import VirtualClock
from tests.consuming.eventually import wait_until
from tests.forking import FORKING
from tests.systems.http_peers import free_port, receiving

pytestmark = [pytest.mark.system("HTTP"), pytest.mark.xdist_group("http-gateway")]

WAIT_S = 60.0


def values(url: str, topic: str) -> list[bytes | None]:
    with ps.connect(url) as stream:
        if topic not in stream.topics():
            return []
        return [record.value for record in stream.read(topic)]


def is_up(url: str) -> bool:
    try:
        return httpx2.get(url.replace("/hooks", "/healthz"), timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


@contextmanager
def gateway_process(folder: Path, url: str, sink: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "penstock.cli", "gateway", url, sink, "--inbox", f"log:{folder}/inbox"]
    with open(folder / "gateway.log", "ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        wait_until(lambda: is_up(url) or process.poll() is not None, WAIT_S)
        assert process.poll() is None, (folder / "gateway.log").read_text()
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        assert process.wait(WAIT_S) is not None


async def send_until_taken(url: str, numbers: range, timeout_s: float) -> Counter[int]:
    """Send each number with its own key until it is taken; count the answers."""
    deadline_s = time.monotonic() + timeout_s
    seen: Counter[int] = Counter()
    limit = asyncio.Semaphore(16)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:

        async def until_taken(number: int, deadline_s: float) -> None:
            body, headers = json.dumps({"n": number}), {"webhook-id": f"message-{number}"}
            while time.monotonic() < deadline_s:
                async with limit:
                    try:
                        async with session.post(url, data=body, headers=headers) as response:
                            seen[response.status] += 1
                            if response.status == 200:
                                return
                    except (aiohttp.ClientError, TimeoutError):
                        seen[0] += 1
                await asyncio.sleep(0.05)
            raise AssertionError(f"{number} was never taken")

        await asyncio.gather(*(until_taken(number, deadline_s) for number in numbers))
    return seen


def test_nothing_is_lost_or_stored_twice_when_the_gateway_is_killed(tmp_path: Path) -> None:
    """Senders repeat what was not answered; what was stored and not answered is recognised after the restart."""
    url = f"http://127.0.0.1:{free_port()}/hooks"
    sink = f"sqlite:{tmp_path}/out.db"
    with ps.connect(sink) as stream:
        stream.create_topic("orders", 1)
    count = 600
    result: list[Counter[int]] = []
    sending = threading.Thread(
        target=lambda: result.append(asyncio.run(send_until_taken(url, range(count), 4 * WAIT_S)))
    )
    for enough in (50, 250, None):
        with gateway_process(tmp_path, url, f"{sink}#orders") as process:
            if enough == 50:
                sending.start()
            if enough is not None:
                wait_until(lambda enough=enough: len(values(sink, "orders")) >= enough, WAIT_S)  # type: ignore[misc]
                process.kill()
                process.wait(WAIT_S)
                continue
            sending.join(WAIT_S)
            wait_until(lambda: len(set(values(sink, "orders"))) == count, WAIT_S)
    assert result[0][200] == count
    assert result[0][0] > 0, "no sender noticed a kill"
    stored = Counter(values(f"log:{tmp_path}/inbox", "hooks"))
    assert set(stored.values()) == {1}, f"stored twice in the inbox: {[value for value in stored if stored[value] > 1]}"
    assert {json.loads(value or b"")["n"] for value in stored} == set(range(count))


class DyingChannel(HttpChannel):
    """Dies when a record is stored, before its sender gets the answer."""

    def acknowledge(self, records: Any) -> None:
        if any(record.value == b"deadly" for record in records):
            os.kill(os.getpid(), signal.SIGKILL)
        super().acknowledge(records)


def run_inbox(url: str, folder: Path, deadly: bool) -> None:
    channel = open_channel(url)
    assert isinstance(channel, HttpChannel)
    if deadly:
        channel.__class__ = DyingChannel
    inbox = Inbox(channel, f"log:{folder}/inbox")
    inbox.start()
    threading.Event().wait(120)


def test_what_was_stored_and_not_answered_is_recognised_after_a_restart(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/hooks"
    first = FORKING.Process(target=run_inbox, args=(url, tmp_path, True))
    first.start()
    wait_until(lambda: is_up(url), WAIT_S)
    assert httpx2.post(url, content=b"good", headers={"webhook-id": "1"}, timeout=30).status_code == 200
    with pytest.raises(httpx2.TransportError):
        httpx2.post(url, content=b"deadly", headers={"webhook-id": "2"}, timeout=30)
    first.join(WAIT_S)
    assert first.exitcode == -signal.SIGKILL
    second = FORKING.Process(target=run_inbox, args=(url, tmp_path, False))
    second.start()
    try:
        wait_until(lambda: is_up(url), WAIT_S)
        for number, body in (("1", b"good"), ("2", b"deadly")):
            again = httpx2.post(url, content=body, headers={"webhook-id": number}, timeout=30)
            assert (again.status_code, again.json()) == (200, {"status": "stored before"})
        assert values(f"log:{tmp_path}/inbox", "hooks") == [b"good", b"deadly"]
    finally:
        second.kill()
        second.join(WAIT_S)


def test_delivered_records_stay_in_the_inbox_while_their_repeats_are_to_be_recognised(tmp_path: Path) -> None:
    clock = VirtualClock()
    url = f"http://127.0.0.1:{free_port()}/hooks"
    inbox = Inbox(open_channel(f"{url}?idempotency_window_s=600"), f"log:{tmp_path}/inbox", clock)
    inbox.start()
    try:
        wait_until(lambda: is_up(url))
        for number in range(3):
            assert httpx2.post(url, content=b"%d" % number).status_code == 200
        inbox.delete_before({0: 2})
        assert values(f"log:{tmp_path}/inbox", "hooks") == [b"0", b"1", b"2"]
        clock.advance(601)
        inbox.delete_before({0: 3})
        assert values(f"log:{tmp_path}/inbox", "hooks") == [b"2"]
    finally:
        inbox.stop()


def test_records_keep_their_id_and_what_a_map_makes_of_one_has_several(tmp_path: Path) -> None:
    source = f"sqlite:{tmp_path}/in.db"
    with ps.connect(source) as stream:
        stream.create_topic("orders", 1)
        stream.send("orders", b"1", headers={"webhook-id": b"first"})
        stream.send("orders", b"2")
        stream.flush()
    with receiving() as receiver:
        Gateway(f"{source}#orders", receiver.url).run(end="latest")
        ids = [request.headers["webhook-id"] for request in receiver.requests]
        assert "first" in ids
        assert any("-orders-0-" in each for each in ids)
        receiver.requests.clear()
        for group in ("a", "b"):
            Gateway(f"{source}#orders", receiver.url, group=group, map=lambda record: ["x", "y"]).run(end="latest")
        by_id = Counter(request.headers["webhook-id"] for request in receiver.requests)
        assert set(by_id.values()) == {2}
        assert len(by_id) == 4


def carry(source: str, sink: str) -> None:
    Gateway(source, sink).run()


def test_a_receiver_can_drop_what_a_killed_gateway_sends_again(tmp_path: Path) -> None:
    """A topic to webhooks: each record has the same id each time."""
    source = f"sqlite:{tmp_path}/in.db"
    with ps.connect(source) as stream:
        stream.create_topic("orders", 2)
        for number in range(200):
            stream.send("orders", b'{"n":%d}' % number, b"%d" % (number % 5))
        stream.flush()
    with receiving() as receiver:
        for enough in (50, 200):
            process = FORKING.Process(target=carry, args=(f"{source}#orders", f"{receiver.url}?first_delay_s=0.01"))
            process.start()
            wait_until(_has(receiver, enough), WAIT_S)
            process.kill()
            process.join(WAIT_S)
        by_id: dict[str, set[bytes]] = {}
        for request in receiver.requests:
            by_id.setdefault(request.headers["idempotency-key"], set()).add(request.body)
        assert len(by_id) == 200
        assert all(len(bodies) == 1 for bodies in by_id.values())
        assert {json.loads(body)["n"] for bodies in by_id.values() for body in bodies} == set(range(200))


def _has(receiver: Any, enough: int) -> Callable[[], bool]:
    return lambda: len(set(receiver.bodies)) >= enough
