"""Registered webhooks: who registered gets its events, signed, at its own pace, whoever else is away."""

from __future__ import annotations

import json
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner, Result

import penstock as ps
from penstock.channels import open_channel
from penstock.channels.http.signatures import new_secret, problem_with
from penstock.channels.webhooks.channel import WebhooksChannel
from penstock.channels.webhooks.registry import Registry
from penstock.cli.main import app as cli
from penstock.errors import BrokerUnavailableError, ConfigError, ConnectionClosedError, UrlError
from penstock.gateway import Gateway
from penstock.model import NewRecord
from tests.consuming.eventually import wait_until
from tests.forking import FORKING
from tests.systems.http_peers import Receiver, Request, free_port, receiving

pytestmark = [pytest.mark.system("HTTP"), pytest.mark.xdist_group("webhooks")]

LOCAL = "allow_http=true&private_addresses=true&first_delay_s=0.02&max_delay_s=0.2&verify=false"
WAIT_S = 60.0


@contextmanager
def webhooks(folder: Path, parameters: str = "") -> Iterator[WebhooksChannel]:
    channel = open_channel(f"webhooks:{folder}/webhooks.db?{LOCAL}{parameters}")
    assert isinstance(channel, WebhooksChannel)
    try:
        yield channel
    finally:
        channel.close()


def event(number: int, kind: str = "order.paid", key: bytes | None = None) -> NewRecord:
    return NewRecord("out", json.dumps({"type": kind, "n": number}).encode(), key)


def numbers(receiver: Receiver) -> list[int]:
    return [json.loads(body)["n"] for body in receiver.bodies]


def test_each_receiver_gets_the_events_that_it_registered_for(tmp_path: Path) -> None:
    with webhooks(tmp_path) as channel, receiving() as everything, receiving() as paid:
        first = channel.registry.register(everything.url)
        second = channel.registry.register(paid.url, ["order.paid", "refund.*"])
        channel.send([event(1), event(2, "order.sent"), event(3, "refund.begun"), NewRecord("out", b"{}")])
        wait_until(lambda: len(everything.requests) == 4 and len(paid.requests) == 2, WAIT_S)
        assert sorted(numbers(paid)) == [1, 3]
        for receiver, registered in ((everything, first), (paid, second)):
            for request in receiver.requests:
                checked = problem_with("standard", registered.secrets, request.headers, request.body, time.time(), 300)
                assert checked == ""
        assert {request.headers["webhook-id"] for request in paid.requests} <= {
            request.headers["webhook-id"] for request in everything.requests
        }
        wait_until(lambda: [each.delivered for each in channel.registry.receivers()] == [4, 2], WAIT_S)
        wait_until(lambda: not channel.registry.waiting(0, 10), WAIT_S)


def test_event_types_come_from_headers_too(tmp_path: Path) -> None:
    with webhooks(tmp_path, "&event=header:Kind") as channel, receiving() as receiver:
        channel.registry.register(receiver.url, ["a"])
        channel.send([NewRecord("out", b"1", None, (("kind", b"a"),)), NewRecord("out", b"2", None, (("kind", b"b"),))])
        channel.send([NewRecord("out", b"3", None, (("kind", b"a"),))])
        wait_until(lambda: sorted(receiver.bodies) == [b"1", b"3"], WAIT_S)


def test_a_receiver_that_is_away_delays_no_other_and_gets_everything_later(tmp_path: Path) -> None:
    port = free_port()
    with webhooks(tmp_path) as channel, receiving() as present:
        channel.registry.register(present.url)
        away = channel.registry.register(f"http://127.0.0.1:{port}/in")
        channel.send([event(number, key=b"%d" % (number % 3)) for number in range(60)])
        wait_until(lambda: len(present.requests) == 60, WAIT_S)
        wait_until(lambda: channel.registry.receiver(away.id).failing_since_ms is not None, WAIT_S)
        assert "unavailable" in channel.registry.receiver(away.id).problem
        with receiving(port) as late:
            wait_until(lambda: len(set(numbers(late))) == 60, WAIT_S)
            by_key: dict[str, list[int]] = defaultdict(list)
            for request in late.requests:
                by_key[request.headers["penstock-key"]].append(json.loads(request.body)["n"])
            assert all(found == sorted(found) for found in by_key.values())
            wait_until(lambda: channel.registry.receiver(away.id).failing_since_ms is None, WAIT_S)


def test_failures_are_retried_and_refusals_are_kept(tmp_path: Path) -> None:
    with webhooks(tmp_path) as channel, receiving() as receiver:
        registered = channel.registry.register(receiver.url)
        seen: set[bytes] = set()

        def answer(request: Request) -> tuple[int, dict[str, str]] | None:
            if json.loads(request.body)["n"] == 3:
                return (422, {})
            first_time = request.body not in seen
            seen.add(request.body)
            return (500, {}) if first_time else (200, {})

        receiver.answer = answer
        channel.send([event(number) for number in range(5)])
        wait_until(lambda: channel.registry.receiver(registered.id).delivered == 4, WAIT_S)
        [(_, kind, value, problem)] = channel.registry.refusals(registered.id)
        assert (kind, json.loads(value or b"")["n"]) == ("order.paid", 3)
        assert "422" in problem
        assert numbers(receiver).count(3) == 1


def test_a_receiver_that_fails_for_too_long_is_disabled_until_it_is_enabled(tmp_path: Path) -> None:
    with webhooks(tmp_path, "&disable_after_s=0.3") as channel, receiving() as receiver:
        registered = channel.registry.register(receiver.url)
        receiver.answer = lambda _: (500, {})
        channel.send([event(1)])
        wait_until(lambda: channel.registry.receiver(registered.id).state == "disabled", WAIT_S)
        assert "nothing could be delivered for" in channel.registry.receiver(registered.id).problem
        count = len(receiver.requests)
        channel.send([event(2)])
        receiver.answer = lambda _: (200, {})
        channel.registry.enable(registered.id)
        wait_until(lambda: set(numbers(receiver)[count:]) == {1, 2}, WAIT_S)


def test_a_receiver_that_is_gone_is_disabled_at_once(tmp_path: Path) -> None:
    with webhooks(tmp_path) as channel, receiving() as receiver:
        registered = channel.registry.register(receiver.url)
        receiver.answer = lambda _: (410, {})
        channel.send([event(1)])
        wait_until(lambda: channel.registry.receiver(registered.id).state == "disabled", WAIT_S)
        assert len(receiver.requests) == 1


def test_a_receiver_that_is_too_far_behind_is_disabled(tmp_path: Path) -> None:
    registry = Registry(f"{tmp_path}/webhooks.db")
    registered = registry.register(f"http://127.0.0.1:{free_port()}/in")
    registry.add((f"id {number}", "", event(number)) for number in range(20))
    with webhooks(tmp_path, "&max_waiting=10"):
        wait_until(lambda: registry.receiver(registered.id).state == "disabled", WAIT_S)
        assert "more than max_waiting=10" in registry.receiver(registered.id).problem
        wait_until(lambda: len(registry.waiting(0, 100)) == 10, WAIT_S)
    registry.close()


def test_a_receiver_gets_what_is_sent_after_it_registered_and_nothing_after_it_left(tmp_path: Path) -> None:
    with webhooks(tmp_path) as channel, receiving() as early, receiving() as late:
        first = channel.registry.register(early.url)
        channel.send([event(1)])
        second = channel.registry.register(late.url)
        channel.send([event(2)])
        wait_until(lambda: (sorted(numbers(early)), numbers(late)) == ([1, 2], [2]), WAIT_S)
        channel.registry.remove(first.id)
        wait_until(lambda: first.id not in _tasks(channel), WAIT_S)
        channel.send([event(3)])
        wait_until(lambda: numbers(late) == [2, 3], WAIT_S)
        assert sorted(numbers(early)) == [1, 2]
        secret = channel.registry.rotate(second.id)
        wait_until(lambda: _signed(channel, late, secret), WAIT_S)
        both = channel.registry.receiver(second.id).secrets
        assert both == (secret, *second.secrets)


def _tasks(channel: WebhooksChannel) -> Any:
    assert channel._deliveries is not None
    return channel._deliveries._tasks


def _signed(channel: WebhooksChannel, receiver: Receiver, secret: str) -> bool:
    channel.send([event(9)])
    request = receiver.requests[-1]
    return problem_with("standard", [secret], request.headers, request.body, time.time(), 300) == ""


def test_the_same_record_is_stored_once(tmp_path: Path) -> None:
    with webhooks(tmp_path) as channel, receiving() as receiver:
        channel.registry.register(f"http://127.0.0.1:{free_port()}/in")
        channel.registry.register(receiver.url)
        record = NewRecord("out", b'{"n": 1}', None, (("webhook-id", b"1"),))
        for _ in range(3):
            channel.send([record])
        channel.send([NewRecord("out", b'{"n": 2}', None, (("webhook-id", b"1"),)), event(3)])
        wait_until(lambda: sorted(numbers(receiver)) == [1, 2, 3], WAIT_S)


def store_and_hang(folder: Path, count: int) -> None:
    with webhooks(folder) as channel:
        for number in range(count):
            channel.send([NewRecord("out", b'{"n": %d}' % number, None, (("webhook-id", b"%d" % number),))])
        (folder / "stored").touch()
        threading.Event().wait(120)


def test_nothing_that_was_stored_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    registry = Registry(f"{tmp_path}/webhooks.db")
    with receiving() as receiver:
        receiver.answer = lambda _: (200, {}) if len(receiver.requests) <= 30 else (503, {})
        registered = registry.register(receiver.url)
        process = FORKING.Process(target=store_and_hang, args=(tmp_path, 100))
        process.start()
        wait_until(lambda: (tmp_path / "stored").exists() and len(receiver.requests) > 40, WAIT_S)
        process.kill()
        process.join(WAIT_S)
        receiver.answer = lambda _: (200, {})
        with webhooks(tmp_path):
            wait_until(lambda: registry.receiver(registered.id).next > 100, WAIT_S)
        assert set(numbers(receiver)) == set(range(100))
    registry.close()


def test_two_processes_share_a_file_and_one_of_them_sends(tmp_path: Path) -> None:
    with webhooks(tmp_path) as first, receiving() as receiver:
        first.registry.register(receiver.url)
        with webhooks(tmp_path) as second:
            for number in range(20):
                (first, second)[number % 2].send([event(number)])
            wait_until(lambda: first.registry.receivers()[0].delivered == 20, WAIT_S)
            first.close()
            second.send([event(20)])
            wait_until(lambda: 20 in numbers(receiver), WAIT_S)
        assert sorted(numbers(receiver)) == list(range(21))


def test_a_gateway_carries_a_topic_to_registered_receivers(tmp_path: Path) -> None:
    source = f"sqlite:{tmp_path}/in.db"
    with ps.connect(source) as stream:
        stream.create_topic("orders", 1)
        for number in range(50):
            stream.send("orders", event(number).value or b"")
        stream.flush()
    registry = Registry(f"{tmp_path}/webhooks.db")
    with receiving() as receiver:
        registry.register(receiver.url, ["order.*"])
        Gateway(f"{source}#orders", f"webhooks:{tmp_path}/webhooks.db?{LOCAL}").run(end="latest")
        with webhooks(tmp_path):
            wait_until(lambda: set(numbers(receiver)) == set(range(50)), WAIT_S)
    registry.close()


# Registering by HTTP


@contextmanager
def registering(folder: Path, parameters: str = "") -> Iterator[tuple[WebhooksChannel, str]]:
    port = free_port()
    local = LOCAL.replace("&verify=false", "")
    channel = open_channel(f"webhooks:{folder}/webhooks.db?{local}&register=127.0.0.1:{port}{parameters}")
    assert isinstance(channel, WebhooksChannel)
    try:
        yield channel, f"http://127.0.0.1:{port}/webhooks"
    finally:
        channel.close()


def test_a_receiver_registers_by_returning_a_challenge(tmp_path: Path) -> None:
    with registering(tmp_path) as (channel, url), receiving() as receiver:
        receiver.answer = lambda request: (200, {"body": json.loads(request.body).get("challenge", "")})
        answer = httpx2.post(url, json={"url": receiver.url, "events": ["order.*"]})
        assert answer.status_code == 201, answer.text
        registered = answer.json()
        [challenge] = receiver.requests
        assert json.loads(challenge.body)["type"] == "webhook.verification"
        secrets = [registered["secret"]]
        assert problem_with("standard", secrets, challenge.headers, challenge.body, time.time(), 300) == ""
        channel.send([event(1)])
        wait_until(lambda: len(receiver.requests) == 2, WAIT_S)
        wait_until(lambda: httpx2.get(f"{url}/{registered['id']}").json()["delivered"] == 1, WAIT_S)
        [shown] = httpx2.get(url).json()
        assert shown["url"] == receiver.url
        assert "secret" not in shown
        new = httpx2.post(f"{url}/{registered['id']}/rotate").json()["secret"]
        assert new != registered["secret"]
        channel.registry.disable(registered["id"], "for a test")
        assert httpx2.post(f"{url}/{registered['id']}/enable").json()["state"] == "active"
        assert httpx2.delete(f"{url}/{registered['id']}").status_code == 204
        assert httpx2.get(f"{url}/{registered['id']}").status_code == 404
        own = new_secret()
        again = httpx2.post(url, json={"url": receiver.url, "secret": own})
        assert again.json()["secret"] == own


def test_who_does_not_return_the_challenge_is_not_registered(tmp_path: Path) -> None:
    with registering(tmp_path) as (channel, url), receiving() as receiver:
        for answer in ((200, {}), (200, {"body": "no"}), (404, {})):
            receiver.answer = lambda _, answer=answer: answer  # type: ignore[misc]
            refused = httpx2.post(url, json={"url": receiver.url})
            assert refused.status_code == 422
            assert "did not return the challenge" in refused.json()["error"]
        assert httpx2.post(url, json={"url": f"http://127.0.0.1:{free_port()}/"}, timeout=30).status_code == 422
        assert not channel.registry.receivers()


def test_wrong_registrations_are_refused(tmp_path: Path) -> None:
    with registering(tmp_path, "&max_receivers=1&verify=false") as (_, url):
        for wrong, status in (
            ({}, 400),
            ({"url": "http://a", "more": 1}, 400),
            ({"url": "ftp://a"}, 422),
            ({"url": "http://ann:secret@a/"}, 422),
            ({"url": "http://a:99999/"}, 422),
            ({"url": "http://a/", "events": []}, 422),
            ({"url": "http://a/", "events": ["two words"]}, 422),
            ({"url": "http://a/", "secret": "not base64!"}, 422),
        ):
            answer = httpx2.post(url, json=wrong)
            assert answer.status_code == status, (wrong, answer.text)
            assert "not base64!" not in answer.text
        assert httpx2.post(url, content=b"x" * 100_000).status_code == 400
        assert httpx2.put(url).status_code == 405
        assert httpx2.post(f"{url}/no/such/path").status_code == 404
        assert httpx2.post(url, json={"url": f"http://127.0.0.1:{free_port()}/"}).status_code == 201
        full = httpx2.post(url, json={"url": "http://b/"})
        assert (full.status_code, "max_receivers" in full.text) == (422, True)


def test_registering_may_need_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTER_TOKEN", "t0ken")
    with registering(tmp_path, "&token_env=REGISTER_TOKEN") as (_, url):
        assert httpx2.get(url).status_code == 401
        assert httpx2.get(url, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert httpx2.get(url, headers={"authorization": "Bearer t0ken"}).json() == []


def test_strangers_cannot_make_it_connect_to_private_addresses(tmp_path: Path) -> None:
    port = free_port()
    channel = open_channel(f"webhooks:{tmp_path}/webhooks.db?register=127.0.0.1:{port}&allow_http=true")
    with receiving() as receiver:
        for address in (receiver.url, receiver.url.replace("127.0.0.1", "localhost")):
            answer = httpx2.post(f"http://127.0.0.1:{port}/webhooks", json={"url": address})
            assert answer.status_code == 422
            assert "public" in answer.json()["error"]
        assert not receiver.requests
    channel.close()
    channel = open_channel(f"webhooks:{tmp_path}/webhooks.db?register=127.0.0.1:{port}")
    refused = httpx2.post(f"http://127.0.0.1:{port}/webhooks", json={"url": "http://example.com/"})
    assert "must begin with https" in refused.json()["error"]
    channel.close()


def test_the_file_is_private(tmp_path: Path) -> None:
    with webhooks(tmp_path) as channel:
        channel.registry.register("http://127.0.0.1:1/")
        assert stat.S_IMODE((tmp_path / "webhooks.db").stat().st_mode) == 0o600
        assert "whsec_" not in repr(channel.registry.receivers())


def test_what_cannot_be_opened_or_done_says_why(tmp_path: Path) -> None:
    for url, problem in (
        ("webhooks:", "is not webhooks:FILE"),
        ("webhooks://host/file", "is not webhooks:FILE"),
        (f"webhooks:{tmp_path}/a.db?timeout_s=0", "must be positive"),
        (f"webhooks:{tmp_path}/a.db?event=type", "must be header:NAME or json:/POINTER"),
        (f"webhooks:{tmp_path}/a.db?register=8090", "is not HOST:PORT"),
        (f"webhooks:{tmp_path}/a.db?register=0.0.0.0:8090", "lets every machine"),
        (f"webhooks:{tmp_path}/a.db?register=127.0.0.1:1&cert_file=no-such-file", "cannot be used"),
        (f"webhooks:{tmp_path}/a.db?nothing=1", "has no setting 'nothing'"),
    ):
        with pytest.raises((ConfigError, UrlError), match=problem):
            open_channel(url)
    with receiving() as taken, pytest.raises(BrokerUnavailableError, match="cannot register"):
        open_channel(f"webhooks:{tmp_path}/a.db?register={taken.url.split('/')[2]}")
    with webhooks(tmp_path) as channel:
        with pytest.raises(ConfigError, match="only sends"):
            channel.listen(1, 0)
        with pytest.raises(ConfigError, match="no receiver wh_1"):
            channel.registry.remove("wh_1")
    with pytest.raises(ConnectionClosedError):
        channel.send([event(1)])


# Registering on the command line


def command(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, ["webhooks", *arguments], prog_name="penstock")
    assert done.exit_code == code, done.output
    return done


def test_a_person_registers_lists_and_removes_receivers(tmp_path: Path) -> None:
    file = f"webhooks:{tmp_path}/webhooks.db?{LOCAL.replace('&verify=false', '')}"
    with receiving() as receiver:
        receiver.answer = lambda request: (200, {"body": json.loads(request.body).get("challenge", "")})
        made = json.loads(command("register", file, receiver.url, "-e", "order.*", "-e", "refund.*", "--json").stdout)
        [challenge] = receiver.requests
        secret = made["secret"]
        assert problem_with("standard", [secret], challenge.headers, challenge.body, time.time(), 300) == ""
        [listed] = json.loads(command("list", file, "--json").stdout)
        assert (listed["id"], listed["events"], listed["state"]) == (made["id"], ["order.*", "refund.*"], "active")
        assert secret not in command("list", file).output + command("show", file, made["id"]).output
        with webhooks(tmp_path) as channel:  # a gateway that runs meanwhile, and has its own settings
            receiver.answer = lambda request: (422 if b'"n": 2' in request.body else 200, {})
            channel.send([event(1), event(2), event(3, "user.new")])
            wait_until(lambda: command("show", file, made["id"], "--json") and len(receiver.requests) == 3, WAIT_S)
            wait_until(lambda: channel.registry.receiver(made["id"]).refused == 1, WAIT_S)
            wait_until(lambda: channel.registry.receiver(made["id"]).delivered == 1, WAIT_S)
            shown = json.loads(command("show", file, made["id"], "--json").stdout)
            assert (shown["delivered"], shown["refused"], shown["messages_behind"]) == (1, 1, 0)
            assert '"n": 2' in shown["refusals"][0]["value"]
            assert '"n": 2' in command("show", file, made["id"]).output
            new = command("rotate", file, made["id"]).stdout.strip()
            assert channel.registry.receiver(made["id"]).secrets == (new, secret)
            channel.registry.disable(made["id"], "for a test")
            assert "for a test" in command("list", file).output
            receiver.answer = lambda request: (200, {"body": json.loads(request.body).get("challenge", "")})
            command("enable", file, made["id"])
            assert channel.registry.receiver(made["id"]).state == "active"
        assert "pass --yes" in command("remove", file, made["id"], code=2).output
        assert "Removed 1 receiver." in command("remove", file, made["id"], "--yes").output
    assert "No receiver is registered." in command("list", f"{tmp_path}/webhooks.db").output


def test_on_the_command_line_the_settings_of_the_url_count_and_mistakes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "webhooks.db")
    assert "there is no file" in command("list", file, code=1).output
    assert "must begin with https" in command("register", file, "http://shop.example/", code=1).output
    assert "did not return the challenge" in command("register", file, "https://127.0.0.1:9/", code=1).output
    unverified = f"webhooks:{file}?verify=false"
    assert "is not set" in command("register", unverified, "https://a/", "--secret-env", "HOOK", code=1).output
    monkeypatch.setenv("HOOK", "short")
    assert "secret" in command("register", unverified, "https://a/", "--secret-env", "HOOK", code=1).output
    own = new_secret()
    monkeypatch.setenv("HOOK", own)
    command("register", unverified, "https://shop.example/", "--secret-env", "HOOK")
    registry = Registry(file)
    [receiver] = registry.receivers()
    registry.close()
    assert (receiver.url, receiver.secrets, receiver.events) == ("https://shop.example/", (own,), ("*",))
    for verb in ("show", "enable", "rotate"):
        assert "no receiver wh_none is registered" in command(verb, unverified, "wh_none", code=1).output
    assert "no receiver wh_none" in command("remove", unverified, receiver.id, "wh_none", "--yes", code=1).output
    assert receiver.id in command("list", unverified).output, "none was removed"
    assert "has no setting 'verfy'" in command("list", f"{file}?verfy=false", code=1).output
