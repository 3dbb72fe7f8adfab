"""The state of handlers over HTTP: saved state only, from the member that owns the key's partition."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import penstock as ps
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming.state_server import MEMBER_HEADER
from penstock.errors import ConfigError
from penstock.model import NewRecord
from penstock.streams.memory import MemoryStream
from tests.consuming.eventually import wait_until
from tests.consuming.state_member import TOPIC
from tests.tidy.source import ROOT

KEYS = [f"key-{number}" for number in range(24)]


class Reply:
    """The answer to a GET, with no retry."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=30)) as connection:
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request("GET", target, headers=headers or {})
            response = connection.getresponse()
            self.status = response.status
            self.value: Any = json.loads(response.read())
            self.member = response.getheader(MEMBER_HEADER)
            self.retry_after = response.getheader("Retry-After")


@contextlib.contextmanager
def serving(streams: MemoryStream, **app_options: Any) -> Iterator[ps.App]:
    app = ps.App(streams, group=app_options.pop("group", "summing"), serve="127.0.0.1:0", **app_options)
    yield app
    app.stop()


def started(app: ps.App) -> threading.Thread:
    thread = app.start()
    wait_until(lambda: not app.unready())
    return thread


def stopped(app: ps.App, thread: threading.Thread) -> None:
    app.stop()
    thread.join(20)
    assert not thread.is_alive()


def append(streams: MemoryStream, topic: str, values: list[tuple[bytes | None, bytes]]) -> None:
    for receipt in streams.open_topic(topic).append([NewRecord(topic, value, key) for key, value in values]):
        receipt.result(10)


def summing(amount: bytes, ctx: ps.Context) -> None:
    ctx.state["total"] = ctx.state.get("total", 0) + int(amount)


async def summing_async(amount: bytes, ctx: ps.Context) -> None:
    await asyncio.sleep(0)
    ctx.state["total"] = ctx.state.get("total", 0) + int(amount)


@pytest.mark.parametrize("handler", [summing, summing_async])
@pytest.mark.parametrize("order", ["key", "partition"])
def test_the_state_of_a_key_is_read_over_http(
    streams: MemoryStream, store: MemoryCheckpoints, handler: Callable[..., Any], order: Any
) -> None:
    append(streams, "amounts", [(b"ada", b"2"), (b"ada", b"3"), (b"a/b c", b"7"), (None, b"1"), (b"\xff", b"9")])
    with serving(streams, checkpoints=store) as app:
        app.handle("amounts", order=order)(handler)
        thread = started(app)
        wait_until(lambda: Reply(f"{app.state_url}/amounts/%ff").status == 200)
        assert Reply(f"{app.state_url}/amounts/ada").value == {"total": 5}
        assert Reply(f"{app.state_url}/amounts/a/b%20c").value == {"total": 7}
        assert Reply(f"{app.state_url}/amounts/").value == {"total": 1}  # records without a key
        assert Reply(f"{app.state_url}/amounts/%ff").value == {"total": 9}
        missing = Reply(f"{app.state_url}/amounts/bob")
        assert (missing.status, missing.retry_after) == (404, None)
        assert "'bob' in the partitions 0" in missing.value["error"]
        listed = Reply(f"{app.state_url}/amounts?partition=0&limit=2").value
        assert [each["key"] for each in listed["keys"]] == ["", "a/b c"]
        assert (listed["total"], listed["after"]) == (4, "a%2Fb%20c")
        rest = Reply(f"{app.state_url}/amounts?partition=0&after={listed['after']}").value
        assert [(each["key"], each["state"]) for each in rest["keys"]] == [
            ("ada", {"total": 5}),
            ("\\xff", {"total": 9}),
        ]
        assert rest["after"] is None
        [partition] = Reply(f"{app.state_url}/amounts").value["partitions"]
        assert (partition["partition"], partition["keys"]) == (0, 4)
        assert Reply(app.state_url).value["handlers"][0]["handler"] == handler.__name__
        stopped(app, thread)


def test_only_what_was_saved_is_shown(streams: MemoryStream) -> None:
    """A handler has returned, and its state was not saved: the save may fail yet."""
    store = StoreThatWaits()
    append(streams, "amounts", [(b"ada", b"2")])
    with serving(streams, checkpoints=store) as app:
        app.handle("amounts", commit_interval_s=0)(summing)
        thread = started(app)
        wait_until(lambda: Reply(f"{app.state_url}/amounts/ada").value == {"total": 2})
        store.may_save.clear()
        append(streams, "amounts", [(b"ada", b"40")])
        assert store.waits.wait(20)
        assert app.consumers[0]._loop.partitions[0].state[b"ada"] == b"\x81\xa5total*"  # type: ignore[union-attr]
        assert Reply(f"{app.state_url}/amounts/ada").value == {"total": 2}
        store.may_save.set()
        wait_until(lambda: Reply(f"{app.state_url}/amounts/ada").value == {"total": 42})
        stopped(app, thread)


class StoreThatWaits(MemoryCheckpoints):
    """Keeps a save waiting that has keyed state."""

    def __init__(self) -> None:
        super().__init__()
        self.may_save = threading.Event()
        self.may_save.set()
        self.waits = threading.Event()

    def save(self, lease: Any, key: Any, change: Any) -> None:
        if change.state and not self.may_save.is_set():
            self.waits.set()
            assert self.may_save.wait(20)
        super().save(lease, key, change)


def test_a_rolled_back_transaction_is_not_shown(streams: MemoryStream, tmp_path: Path) -> None:
    append(streams, "amounts", [(b"ada", b"2"), (b"ada", b"-1"), (b"bob", b"3")])
    with serving(streams, checkpoints=f"sqlite:{tmp_path}/checkpoints.db") as app:

        @app.handle("amounts", guarantee="exactly-once", retry=1, dead_letters=f"file:{tmp_path}/letters.jsonl")
        def add(amount: bytes, ctx: ps.Context) -> None:
            summing(amount, ctx)
            with ctx.transaction():
                if int(amount) < 0:
                    raise ValueError("a negative amount")

        thread = started(app)
        wait_until(lambda: Reply(f"{app.state_url}/amounts/bob").status == 200)
        assert Reply(f"{app.state_url}/amounts/ada").value == {"total": 2}
        stopped(app, thread)


def test_deleted_state_is_not_found(streams: MemoryStream, store: MemoryCheckpoints) -> None:
    append(streams, "amounts", [(b"ada", b"2")])
    with serving(streams, checkpoints=store) as app:

        @app.handle("amounts")
        def add(amount: bytes, ctx: ps.Context) -> None:
            if int(amount):
                ctx.state["total"] = int(amount)
            else:
                ctx.state.clear()

        thread = started(app)
        wait_until(lambda: Reply(f"{app.state_url}/amounts/ada").value == {"total": 2})
        append(streams, "amounts", [(b"ada", b"0")])
        wait_until(lambda: Reply(f"{app.state_url}/amounts/ada").status == 404)
        stopped(app, thread)


def test_several_handlers_of_a_topic_are_told_apart(streams: MemoryStream, store: MemoryCheckpoints) -> None:
    append(streams, "amounts", [(b"ada", b"2")])
    with serving(streams, checkpoints=store) as app:
        app.handle("amounts")(summing)

        @app.handle("amounts", group="counting")
        def count(amount: bytes, ctx: ps.Context) -> None:
            ctx.state["count"] = ctx.state.get("count", 0) + 1

        thread = started(app)
        wait_until(lambda: Reply(f"{app.state_url}/amounts/ada?handler=count").value == {"count": 1})
        wait_until(lambda: Reply(f"{app.state_url}/amounts/ada?group=summing").value == {"total": 2})
        unclear = Reply(f"{app.state_url}/amounts/ada")
        assert unclear.status == 400
        assert "handler=summing&group=summing, handler=count&group=counting" in unclear.value["error"]
        assert Reply(f"{app.state_url}/amounts/ada?handler=other").status == 404
        stopped(app, thread)


def test_keys_are_encoded_as_the_topic_encodes_them(streams: MemoryStream, store: MemoryCheckpoints) -> None:
    numbers = ps.Topic("numbered", int, key=lambda number: number % 10, key_serde="msgpack")
    append(streams, "numbered", [(numbers.new_record(7).key, numbers.new_record(7).value or b"")])
    with serving(streams, checkpoints=store) as app:

        @app.handle(numbers)
        def keep(number: int, ctx: ps.Context) -> None:
            ctx.state["last"] = number

        thread = started(app)
        wait_until(lambda: Reply(f"{app.state_url}/numbered/7").value == {"last": 7})
        stopped(app, thread)


def test_topics_of_a_pattern_are_served(streams: MemoryStream, store: MemoryCheckpoints) -> None:
    append(streams, "amounts.oslo", [(b"ada", b"2")])
    with serving(streams, checkpoints=store) as app:
        app.handle(re.compile(r"amounts\..*"), dead_letters=False)(summing)
        thread = started(app)
        wait_until(lambda: Reply(f"{app.state_url}/amounts.oslo/ada").value == {"total": 2})
        stopped(app, thread)


def test_members_of_one_process_ask_each_other(store: MemoryCheckpoints) -> None:
    streams = MemoryStream(partitions=4)
    append(streams, "amounts", [(key.encode(), b"1") for key in KEYS])
    with serving(streams, checkpoints=store) as one, serving(streams, checkpoints=store) as other:
        threads = []
        for app in (one, other):
            app.handle("amounts")(summing)
            threads.append(started(app))
        wait_until(lambda: all(len(app.consumers[0]._loop.partitions) == 2 for app in (one, other)))  # type: ignore[union-attr]
        for app in (one, other):
            for key in KEYS:
                wait_until(lambda app=app, key=key: Reply(f"{app.state_url}/amounts/{key}").value == {"total": 1})  # type: ignore[misc]
        answered = {Reply(f"{one.state_url}/amounts/{key}").member for key in KEYS}
        assert answered == {one.consumers[0].member, other.consumers[0].member}  # type: ignore[union-attr]
        for app, thread in zip((one, other), threads, strict=True):
            stopped(app, thread)
    streams.close()


def test_a_member_that_serves_nothing_is_named(store: MemoryCheckpoints) -> None:
    streams = MemoryStream(partitions=2)
    append(streams, "amounts", [(b"ada", b"2")])
    silent = ps.App(streams, group="summing", checkpoints=store)
    with serving(streams, checkpoints=store) as app, silent:
        threads = []
        for each in (app, silent):
            each.handle("amounts")(summing)
            threads.append(started(each))
        wait_until(lambda: all(len(each.consumers[0]._loop.partitions) == 1 for each in (app, silent)))  # type: ignore[union-attr]
        wait_until(lambda: "its App needs serve=" in Reply(f"{app.state_url}/amounts/nobody").value["error"])
        assert Reply(f"{app.state_url}/amounts/nobody").status == 503
        for each, thread in zip((app, silent), threads, strict=True):
            stopped(each, thread)
    streams.close()


def test_a_member_that_has_not_heard_from_its_group_answers_nothing(streams: MemoryStream) -> None:
    """Its partitions may be those of others meanwhile."""
    store = StoreThatWaits()
    append(streams, "amounts", [(b"ada", b"2")])
    with serving(streams, checkpoints=store) as app:
        app.handle("amounts", commit_interval_s=0, session_timeout_s=0.5)(summing)
        thread = started(app)
        wait_until(lambda: Reply(f"{app.state_url}/amounts/ada").value == {"total": 2})
        store.may_save.clear()
        append(streams, "amounts", [(b"ada", b"40")])
        wait_until(lambda: Reply(f"{app.state_url}/amounts/ada").status == 503)
        store.may_save.set()
        wait_until(lambda: Reply(f"{app.state_url}/amounts/ada").value == {"total": 42})
        stopped(app, thread)


def test_what_is_not_there_is_refused_in_words(streams: MemoryStream, store: MemoryCheckpoints) -> None:
    append(streams, "amounts", [(b"ada", b"2")])
    append(streams, "loose", [(b"ada", b"2")])
    with serving(streams, checkpoints=store) as app:
        app.handle("amounts")(summing)

        @app.handle("loose", order="none")
        def look(amount: bytes) -> None: ...

        thread = started(app)
        wait_until(lambda: Reply(f"{app.state_url}/amounts/ada").status == 200)
        for path, status, words in [
            ("/other/ada", 404, "it handles amounts, loose"),
            ("/loose/ada", 404, "ctx.state needs order='partition' or 'key'"),
            ("/amounts/ada?partition=7", 404, "has no partition 7"),
            ("/amounts/ada?partition=x", 400, "'partition=x' is not one of"),
            ("/amounts?partition=0,1", 400, "one partition"),
            ("/%ff/ada", 400, "UTF-8"),
        ]:
            reply = Reply(f"{app.state_url}{path}")
            assert (reply.status, words in reply.value["error"]) == (status, True), (path, reply.value)
        assert Reply(app.state_url.replace("/state", "/")).status == 404
        foreign = Reply(f"{app.state_url}/amounts/ada", {"Host": "evil.example"})
        assert (foreign.status, foreign.member) == (403, None)
        renamed = Reply(f"{app.state_url}/amounts/ada", {MEMBER_HEADER: "one-that-was-here-before"})
        assert (renamed.status, renamed.retry_after, renamed.member) == (503, "1", None)
        stopped(app, thread)
    with pytest.raises(ConfigError, match="does not serve its state"):
        _ = app.state_url


def test_addresses_and_handlers_that_cannot_be_served_are_refused(streams: MemoryStream) -> None:
    for serve, words in [
        ("0.0.0.0:0", "read the state of your handlers, without a login"),
        ("nowhere", "is not HOST:PORT"),
    ]:
        app = ps.App(streams, group="g", serve=serve)
        app.handle("amounts")(summing)
        with pytest.raises(ConfigError, match=words):
            app.run()
    app = ps.App(streams, group="g", serve="127.0.0.1:0")
    app.handle("amounts", order="none")(lambda amount: None)
    with pytest.raises(ConfigError, match="no handler of the app can have state"):
        app.run()


class Member:
    """A member in a process of its own."""

    def __init__(self, url: str, checkpoints: str) -> None:
        command = [sys.executable, "-m", "tests.consuming.state_member", url, checkpoints]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url

    def owned(self) -> set[int]:
        """The partitions that it says are its own."""
        reply = Reply(f"{self.url}/{TOPIC}")
        return {each["partition"] for each in reply.value.get("partitions", ()) if "keys" in each}

    def totals(self) -> dict[str, Any] | None:
        """The state of all keys; None while some of it cannot be told."""
        found = {}
        for key in KEYS:
            reply = Reply(f"{self.url}/{TOPIC}/{key}")
            if reply.status == 503:
                assert reply.retry_after == "1", reply.value
                return None
            found[key] = (reply.status, reply.value.get("total"))
        return found

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize(
    ("stream_url", "checkpoints"),
    [("log:data", "sqlite:saved.db"), ("log:data", "kafka:"), ("sqlite:stream.db", "sqlite:saved.db")],
    ids=["broker's group", "broker's group and checkpoints", "group of leases"],
)
def test_processes_answer_for_each_other_through_a_rebalance_and_a_kill(
    tmp_path: Path, stream_url: str, checkpoints: str
) -> None:
    url = stream_url.replace(":", f":{tmp_path}/")
    checkpoints = checkpoints.replace("sqlite:", f"sqlite:{tmp_path}/")
    members: list[Member] = []
    with ps.connect(url) as stream, contextlib.ExitStack() as stack:
        amounts = ps.Topic(TOPIC, str, partitions=4)

        def send(amount: int) -> None:
            for key in KEYS:
                stream.send(amounts, str(amount), key=key)
            stream.flush()

        def begin() -> Member:
            members.append(Member(url, checkpoints))
            stack.callback(members[-1].end)
            return members[-1]

        send(1)
        one = begin()
        wait_until(lambda: one.totals() == dict.fromkeys(KEYS, (200, 1)), 60)
        two = begin()
        wait_until(lambda: len(one.owned()) == len(two.owned()) == 2, 60)
        assert one.owned() | two.owned() == {0, 1, 2, 3}
        send(10)
        for member in (one, two):
            wait_until(lambda member=member: member.totals() == dict.fromkeys(KEYS, (200, 11)), 60)  # type: ignore[misc]
        assert len({Reply(f"{one.url}/{TOPIC}/{key}").member for key in KEYS}) == 2
        pages = [Reply(f"{one.url}/{TOPIC}?partition={each}").value for each in range(4)]
        assert sorted(each["key"] for page in pages for each in page["keys"]) == sorted(KEYS)

        kept = [key for key in KEYS if Reply(f"{one.url}/{TOPIC}/{key}").member != _member_of(one)]
        assert kept, "the other member has no keys"
        two.process.send_signal(signal.SIGKILL)
        two.process.wait()
        reply = Reply(f"{one.url}/{TOPIC}/{kept[0]}")
        assert (reply.status, reply.retry_after) == (503, "1"), reply.value
        assert "does not answer" in reply.value["error"]
        missing = Reply(f"{one.url}/{TOPIC}/nobody")  # the member that is gone may have had it
        assert missing.status == 503
        send(100)
        wait_until(lambda: one.totals() == dict.fromkeys(KEYS, (200, 111)), 60)
        assert Reply(f"{one.url}/{TOPIC}/nobody").status == 404
        three = begin()
        wait_until(lambda: len(one.owned()) == len(three.owned()) == 2, 60)
        one.process.terminate()
        wait_until(lambda: three.totals() == dict.fromkeys(KEYS, (200, 111)), 60)
        assert one.process.wait(30) == 0


def _member_of(member: Member) -> str:
    """Its name in its group."""
    partitions = Reply(f"{member.url}/{TOPIC}").value["partitions"]
    return str(next(each["member"] for each in partitions if "keys" in each))
