"""Webhooks out: receivers that are away, slow, busy or refuse, and what `send` makes of it."""

from __future__ import annotations

import email.utils
import ipaddress
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock as ps
from penstock.abc import Channel
from penstock.channels import open_channel
from penstock.channels.http.sender import is_public, retry_after_s
from penstock.channels.http.signatures import new_secret, problem_with
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    DeliveryError,
    RecordTooLargeError,
)
from penstock.model import DeadLetterFilter, NewRecord
from penstock.model.record import own_id
from penstock.testing import TcpProxy
from tests.consuming.eventually import wait_until
from tests.observe.alerts.certificates import make_certificate
from tests.systems.http_peers import Request, free_port, listening, receiving

pytestmark = [pytest.mark.system("HTTP"), pytest.mark.xdist_group("http-sending")]

Answer = tuple[int, dict[str, str]] | None
FAST = "first_delay_s=0.01"


def answers(*statuses: int | Answer) -> Callable[[Request], Answer]:
    """These answers, one after the other; the last one for all further requests."""
    left = list(statuses)
    lock = threading.Lock()

    def answer(_: Request) -> Answer:
        with lock:
            status = left.pop(0) if len(left) > 1 else left[0]
        return (status, {}) if isinstance(status, int) else status

    return answer


def record(value: bytes = b"{}", key: bytes | None = None, **headers: bytes) -> NewRecord:
    return NewRecord("out", value, key, tuple((name.replace("_", "-"), text) for name, text in headers.items()))


def send(url: str, *records: NewRecord) -> None:
    channel = open_channel(url)
    try:
        channel.send(records)
    finally:
        channel.close()


def test_a_record_is_a_request() -> None:
    with receiving() as receiver:
        send(
            f"{receiver.url}/a%2Fb?query=code%3D1%26x%3D2",
            NewRecord("out", b'{"id":1}', b"k\xff", (("x-event", b"paid"), ("Odd Name", b"\xff")), 1_700_000_000_123),
        )
        [request] = receiver.requests
        assert (request.method, request.path, request.body) == ("POST", "/in/a%2Fb?code=1&x=2", b'{"id":1}')
        assert request.headers["content-type"] == "application/json"
        assert request.headers["x-event"] == "paid"
        assert request.headers["penstock-key"] == "k%FF"
        assert request.headers["penstock-timestamp"] == "1700000000123"
        assert request.headers["idempotency-key"] == request.headers["webhook-id"]
        assert "Odd Name" not in request.headers


def test_the_settings_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT_TOKEN", "t0ken")
    with receiving() as receiver:
        send(f"{receiver.url}?method=PUT&content_type=text/csv&token_env=OUT_TOKEN", record(b"a,b"))
        send(receiver.url.replace("//", "//ann:s%40fe@"), record(b"<a/>", content_type=b"text/xml"))
        first, second = receiver.requests
        assert (first.method, first.headers["content-type"]) == ("PUT", "text/csv")
        assert first.headers["authorization"] == "Bearer t0ken"
        assert second.headers["authorization"] == "Basic YW5uOnNAZmU="
        assert second.headers["content-type"] == "text/xml"


def test_a_listening_channel_takes_what_another_one_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARED_SECRET", new_secret())
    with listening("secret_env=SHARED_SECRET") as hooks:
        sent = [NewRecord("out", None, b"", (("a", None), ("a", b"=&"), ("ü", b"1")), 5), record(b"x", b"key")]
        send(f"{hooks.url}?secret_env=SHARED_SECRET", *sent)
        found = sorted(hooks.records, key=lambda each: each.key or b"")
        assert [(each.value, each.key, each.headers) for each in found] == [
            (each.value, each.key, each.headers) for each in sent
        ]
        assert found[0].timestamp_ms == 5


@pytest.mark.parametrize("style", ["standard", "github", "stripe"])
def test_requests_are_signed_with_every_secret(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = [new_secret(), new_secret()]
    monkeypatch.setenv("OUT_SECRETS", "\n".join(secrets))
    with receiving() as receiver:
        send(f"{receiver.url}?secret_env=OUT_SECRETS&signature={style}", record(b"signed"))
        [request] = receiver.requests
        for secret in secrets[:1] if style == "github" else secrets:
            problem = problem_with(style, [secret], request.headers, request.body, time.time(), 300)  # type: ignore[arg-type]
            assert problem == ""


def test_what_may_pass_is_tried_again_with_the_same_id() -> None:
    with receiving() as receiver:
        for failure in (500, 503, 429, 408, 425, None):
            receiver.requests.clear()
            receiver.answer = answers(failure, failure, 202)
            send(f"{receiver.url}?{FAST}", record())
            assert len(receiver.requests) == 3
            assert len({request.headers["idempotency-key"] for request in receiver.requests}) == 1


def test_the_id_of_a_record_comes_from_its_headers() -> None:
    assert own_id((("penstock-id", b"1"), ("Webhook-Id", b"2"))) == "1"
    assert own_id((("X-GitHub-Delivery", b"2"),)) == "2"
    long, odd = own_id((("webhook-id", b"x" * 300),)), own_id((("webhook-id", b"\xff"),))
    assert (len(long), len(odd)) == (64, 64)
    events = {own_id((("ce-id", b"1"), ("ce-source", source))) for source in (b"a", b"b")}
    assert len(events) == 2
    assert own_id((("ce-id", b"1"), ("webhook-id", b""))) == ""


def test_attempts_are_limited_and_the_error_says_what_the_receiver_said() -> None:
    with receiving() as receiver:
        receiver.answer = answers(500)
        with pytest.raises(DeliveryError, match="answered 500") as caught:
            send(f"{receiver.url}?{FAST}&attempts=3", record())
        assert caught.value.retriable
        assert len(receiver.requests) == 3


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_refused_record_is_not_tried_again(status: int) -> None:
    with receiving() as receiver:
        receiver.answer = lambda request: (status if request.body == b"bad" else 200, {})
        with pytest.raises(DeliveryError, match=str(status)) as caught:
            send(receiver.url, record(b"1", b"k"), record(b"bad", b"k"), record(b"2", b"k"))
        assert not caught.value.retriable
        assert receiver.bodies == [b"1", b"bad", b"2"]


@pytest.mark.parametrize("status", [301, 302, 307, 401, 403, 404, 405, 410])
def test_a_wrong_url_or_login_is_not_the_fault_of_a_record(status: int) -> None:
    with receiving() as receiver:
        receiver.answer = lambda _: (status, {"Location": receiver.url})
        with pytest.raises(BrokerUnavailableError, match=str(status)) as caught:
            send(receiver.url, record(b"1", b"k"), record(b"2", b"k"))
        assert not caught.value.retriable
        assert receiver.bodies == [b"1"]


def test_redirects_are_followed_if_asked_for_and_keep_the_login_at_home() -> None:
    with receiving() as old, receiving() as new:
        old.answer = lambda _: (308, {"Location": new.url})
        send(old.url.replace("//", "//ann:safe@") + "?redirects=1", record(b"moved"))
        assert new.bodies == [b"moved"]
        assert "authorization" in old.requests[0].headers
        assert "authorization" not in new.requests[0].headers
        new.answer = lambda _: (307, {"Location": old.url})
        with pytest.raises(BrokerUnavailableError, match="redirects more than 3 times"):
            send(f"{old.url}?redirects=3", record())


def test_a_receiver_may_ask_for_a_pause() -> None:
    with receiving() as receiver:
        receiver.answer = answers((429, {"Retry-After": "1"}), 200)
        began_s = time.monotonic()
        send(f"{receiver.url}?{FAST}", record())
        assert time.monotonic() - began_s >= 1
        receiver.answer = answers((503, {"Retry-After": "600"}), 200)
        receiver.requests.clear()
        channel = open_channel(f"{receiver.url}?{FAST}")
        with pytest.raises(DeliveryError, match="503"):
            channel.send([record()])
        with pytest.raises(BrokerUnavailableError, match="gets no requests for 10 min"):
            channel.send([record()])
        assert len(receiver.requests) == 1
        channel.close()


def test_retry_after_is_read_in_both_forms() -> None:
    assert retry_after_s("120", 0) == 120
    assert retry_after_s("99999999", 0) == 3600
    assert retry_after_s(email.utils.formatdate(1_000_060, usegmt=True), 1_000_000) == 60
    assert retry_after_s(email.utils.formatdate(1_000_000, usegmt=True), 2_000_000) == 0
    for nonsense in ("", "soon", "-5", "1e3", "٣"):
        assert retry_after_s(nonsense, 0) is None


def test_a_receiver_that_is_away_slow_or_speaks_something_else() -> None:
    with pytest.raises(BrokerUnavailableError, match="unavailable"):
        send(f"http://127.0.0.1:{free_port()}/in?{FAST}", record())
    with pytest.raises(BrokerUnavailableError, match="unavailable"):
        send(f"http://no-such-host.invalid/in?{FAST}&attempts=1", record())
    with receiving() as receiver:
        released = threading.Event()
        receiver.answer = lambda _: (200, {}) if released.wait(20) else None
        with pytest.raises(BrokerUnavailableError, match=r"did not answer within 0\.2 s"):
            send(f"{receiver.url}?timeout_s=0.2&attempts=1", record())
        released.set()
        with pytest.raises(BrokerUnavailableError, match="unavailable"):
            send(f"{receiver.url.replace('http:', 'https:')}?{FAST}&attempts=1", record())


def test_the_breaker_spares_a_receiver_that_is_away_and_notices_when_it_is_back() -> None:
    with receiving() as receiver:
        receiver.answer = answers(500)
        channel = open_channel(f"{receiver.url}?attempts=1&breaker_after=3")
        for _ in range(3):
            with pytest.raises(DeliveryError):
                channel.send([record()])
        for _ in range(10):
            with pytest.raises(BrokerUnavailableError, match="gets no requests"):
                channel.send([record()])
        assert len(receiver.requests) == 3
        receiver.answer = answers(200)
        wait_until(lambda: _sends(channel))
        channel.send([record() for _ in range(20)])
        channel.close()


def _sends(channel: Channel) -> bool:
    try:
        channel.send([record()])
    except BrokerUnavailableError:
        return False
    return True


def test_records_with_the_same_key_keep_their_order_and_others_go_side_by_side() -> None:
    with receiving() as receiver:
        lock, now, most = threading.Lock(), [0], [0]

        def answer(_: Request) -> Answer:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            threading.Event().wait(0.005)
            with lock:
                now[0] -= 1
            return (200, {})

        receiver.answer = answer
        records = [record(b"%d" % number, b"key %d" % (number % 7)) for number in range(140)]
        send(f"{receiver.url}?concurrency=4", *records)
        by_key: dict[str, list[int]] = defaultdict(list)
        for request in receiver.requests:
            by_key[request.headers["penstock-key"]].append(int(request.body))
        assert len(by_key) == 7
        assert all(numbers == sorted(numbers) for numbers in by_key.values())
        assert 1 < most[0] <= 4


def test_a_batch_is_a_json_array() -> None:
    with receiving() as receiver:
        channel = open_channel(f"{receiver.url}?batch=3")
        channel.send([record(b'{"n":%d}' % number) for number in range(7)])
        assert [json.loads(body) for body in receiver.bodies] == [
            [{"n": 0}, {"n": 1}, {"n": 2}],
            [{"n": 3}, {"n": 4}, {"n": 5}],
            [{"n": 6}],
        ]
        with pytest.raises(DeliveryError, match="is not JSON"):
            channel.send([record(b"1"), record(b"no")])
        assert len(receiver.requests) == 3
        channel.close()


def test_what_does_not_fit_into_a_request_is_refused_before_anything_is_sent() -> None:
    with receiving() as receiver:
        channel = open_channel(f"{receiver.url}?max_body_bytes=100")
        for large in (
            record(b"x" * 101),
            record(b"x", b"k" * 9_000),
            record(b"x", None, big=b"h" * 9_000),
            NewRecord("out", b"", None, tuple((f"h{number}", b"") for number in range(51))),
        ):
            with pytest.raises(RecordTooLargeError):
                channel.send([record(b"fits"), large])
        assert not receiver.requests
        channel.close()


def test_connections_are_used_again_and_replaced_when_cut() -> None:
    with receiving() as receiver, TcpProxy(int(receiver.url.split(":")[2].split("/")[0])) as proxy:
        channel = open_channel(f"http://{proxy.address}/in?{FAST}")
        channel.send([record(b"%d" % number, b"k") for number in range(20)])
        proxy.cut()
        with pytest.raises(BrokerUnavailableError):
            channel.send([record(b"cut off")])
        proxy.heal()
        wait_until(lambda: _sends(channel))
        channel.close()
        assert receiver.bodies[:20] == [b"%d" % number for number in range(20)]


def test_tls_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    with receiving(tls=certificate.serving()) as receiver:
        send(f"{receiver.url}?ca_file={certificate.file}", record(b"safe"))
        with pytest.raises(BrokerUnavailableError, match=r"(?i)certificate") as caught:
            send(receiver.url, record(b"unsafe"))
        assert not caught.value.retriable
        assert receiver.bodies == [b"safe"]
    with pytest.raises(ConfigError, match="cannot be used"):
        send(f"{receiver.url}?ca_file={tmp_path}/none", record())


def test_private_addresses_are_refused_if_asked_for() -> None:
    with receiving() as receiver:
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"):
            url = receiver.url.replace("127.0.0.1", host)
            with pytest.raises(BrokerUnavailableError, match=r"not (a )?public"):
                send(f"{url}?private_addresses=false", record())
        assert not receiver.requests


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True), ("2606:4700::1111", True), ("10.1.2.3", False), ("169.254.169.254", False),
        ("192.168.0.1", False), ("100.64.0.1", False), ("224.0.0.1", False), ("0.0.0.0", False), ("::1", False),
        ("fe80::1", False), ("fd00::1", False), ("::ffff:10.0.0.1", False), ("64:ff9b::a00:1", False),
        ("2002:a00:1::", False), ("::ffff:8.8.8.8", True),
    ],
)  # fmt: skip
def test_which_addresses_are_public(address: str, expected: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is expected


def test_a_closed_channel_ends_what_is_under_way() -> None:
    with receiving() as receiver, ThreadPoolExecutor(1) as pool:
        released = threading.Event()
        receiver.answer = lambda _: (200, {}) if released.wait(20) else None
        channel = open_channel(receiver.url)
        sending = pool.submit(channel.send, [record()])
        wait_until(lambda: receiver.requests)
        channel.close()
        with pytest.raises(ConnectionClosedError):
            sending.result(20)
        released.set()
        with pytest.raises(ConnectionClosedError):
            channel.send([record()])


def test_the_results_of_a_handler_wait_for_the_receiver_and_refused_ones_are_dead_letters(tmp_path: Path) -> None:
    letters = f"sqlite:{tmp_path}/letters.db"
    with receiving() as receiver:
        receiver.answer = lambda request: (
            422 if b"13" in request.body else 200 if len(receiver.requests) > 3 else 503,
            {},
        )
        url = f"{receiver.url}?attempts=1"
        with ps.connect(f"log:{tmp_path}/data") as stream:
            stream.admin().provide("orders", 1, {})
            for number in range(20):
                stream.send("orders", b"%d" % number).result(30)
        app = ps.App(f"log:{tmp_path}/data", group="out")

        @app.handle("orders", to=url, dead_letters=letters)
        def forward(value: bytes) -> bytes:
            return b'{"n":%s}' % value

        app.run(end="latest")
        delivered = {json.loads(body)["n"] for body in receiver.bodies}
        assert delivered == set(range(20))
        store = open_dead_letters(letters)
        [letter] = store.browse(DeadLetterFilter())
        assert letter.record.value == b"13"
        assert "422" in str(letter)
        store.close()
