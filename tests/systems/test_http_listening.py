"""Webhooks in: requests of honest and lying clients, signatures, idempotency keys, and what the answers promise."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import socket
import ssl
import subprocess
import threading
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import httpx2
import pytest

from penstock.abc import Acknowledging, Channel
from penstock.channels import open_channel
from penstock.channels.http.settings import HttpSettings
from penstock.channels.http.signatures import Secrets, new_secret, problem_with, sign
from penstock.errors import BrokerUnavailableError, ConfigError, ConnectionClosedError, UrlError
from penstock.model import Record
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.observe.alerts.certificates import make_certificate
from tests.systems.http_peers import Listening, acknowledge, free_port, listening, raw, read_answer

pytestmark = [pytest.mark.system("HTTP"), pytest.mark.xdist_group("http")]

STANDARD = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(scope="module", autouse=True)
def _met() -> None:
    channel = open_channel("http://127.0.0.1:1/hooks")
    system_table.met("HTTP", f"HTTP/1.1 by aiohttp {aiohttp.__version__}, httpx2, curl and sockets", channel.features)
    channel.close()


def post(hooks: Listening, body: bytes = b"{}", path: str | None = None, **headers: str) -> httpx2.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.post(hooks.url if path is None else path, content=body, headers=names, timeout=30)


def test_a_request_is_a_record() -> None:
    with listening("key=header:X-Customer") as hooks:
        answer = post(hooks, b'{"id": 1}', x_customer="ann", content_type="application/json", x_github_event="push")
        assert answer.status_code == 200
        assert answer.json() == {"status": "stored"}
        [record] = hooks.records
        assert (record.topic, record.partition, record.offset) == ("hooks", 0, 0)
        assert (record.key, record.value) == (b"ann", b'{"id": 1}')
        assert dict(record.headers) == {"content-type": b"application/json", "x-github-event": b"push"}
        assert abs((record.timestamp_ms or 0) - time.time() * 1000) < 60_000
        assert httpx2.put(hooks.url, content=b"put").status_code == 200
        assert hooks.values == [b'{"id": 1}', b"put"]


def test_the_key_may_come_from_the_body() -> None:
    with listening("key=json:/customer/ids/0") as hooks:
        for body in (
            b'{"customer": {"ids": [7, 8]}}', b'{"customer": {"ids": ["\xc3\xbc"]}}', b"not json", b"[" * 100_000,
        ):  # fmt: skip
            assert post(hooks, body).status_code == 200
        assert [record.key for record in hooks.records] == [b"7", "ü".encode(), None, None]


def test_selected_headers_are_stored_and_credentials_never_are() -> None:
    with listening("headers=*") as hooks:
        post(hooks, b"", authorization="Basic c2VjcmV0", cookie="session=1", x_other="2", x_gitlab_token="token")
        names = [name for name, _ in hooks.records[0].headers]
        assert "x-other" in names
        assert not {"authorization", "cookie", "x-gitlab-token"} & set(names)


def test_other_paths_and_methods_are_told_so() -> None:
    with listening() as hooks:
        assert post(hooks, path=f"{hooks.url}/more").status_code == 404
        assert post(hooks, path=hooks.url.replace("hooks", "")).status_code == 404
        refused = httpx2.get(hooks.url)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST, PUT")
        health = hooks.url.replace("/hooks", "/healthz")
        assert httpx2.get(health).status_code == 200
        assert httpx2.post(health).status_code == 405
        assert post(hooks, path=f"{hooks.url}?source=shop").status_code == 200
        assert not hooks.values[1:]


def test_large_bodies_are_refused_however_they_are_sent() -> None:
    with listening("max_body_bytes=1000") as hooks:
        assert post(hooks, b"x" * 1000).status_code == 200
        assert post(hooks, b"x" * 1001).status_code == 413

        assert httpx2.post(hooks.url, content=iter([b"x" * 400] * 3)).status_code == 413
        bomb = zlib.compress(b"x" * 100_000)
        assert len(bomb) < 1000
        assert post(hooks, bomb, content_encoding="deflate").status_code == 413
        lie = b"POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\nx"
        assert b" 413 " in raw(hooks.url, lie)
        assert [len(value or b"") for value in hooks.values] == [1000]


def test_bodies_may_be_compressed_or_chunked() -> None:
    with listening() as hooks:
        assert post(hooks, gzip.compress(b"zipped"), content_encoding="gzip").status_code == 200
        assert post(hooks, zlib.compress(b"deflated"), content_encoding="deflate").status_code == 200
        assert httpx2.post(hooks.url, content=iter([b"in ", b"chunks"])).status_code == 200
        refused = post(hooks, b"?", content_encoding="br")
        assert (refused.status_code, refused.headers["accept-encoding"]) == (415, "gzip, deflate")
        assert post(hooks, b"not gzip", content_encoding="gzip").status_code == 400
        assert post(hooks, gzip.compress(b"cut off")[:-3], content_encoding="gzip").status_code == 400
        assert hooks.values == [b"zipped", b"deflated", b"in chunks"]


def test_curl_sends_a_large_body_after_the_servers_consent(tmp_path: Path) -> None:
    """curl asks with `Expect: 100-continue`, and waits a second for the answer if there is none."""
    body = tmp_path / "body"
    body.write_bytes(b"x" * 2_000_000)
    with listening("max_body_bytes=3000000") as hooks:
        command = ["curl", "-sS", "-v", "-H", "Expect: 100-continue", "--data-binary", f"@{body}", hooks.url]
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        assert b"100 Continue" in done.stderr
        assert done.stdout == b'{"status":"stored"}'
        assert len(hooks.values[0] or b"") == 2_000_000


def test_a_refused_record_is_told_to_its_sender() -> None:
    def refuse(channel: Channel, records: list[Record]) -> None:
        assert isinstance(channel, Acknowledging)
        for record in records:
            channel.refuse([record], "because", again=record.value == b"again")

    with listening("retry_after_s=7", refuse) as hooks:
        again = post(hooks, b"again")
        assert (again.status_code, again.headers["retry-after"]) == (503, "7")
        assert "because" in again.json()["error"]
        final = post(hooks, b"never")
        assert (final.status_code, final.json()) == (422, {"error": "because"})


def test_a_request_that_is_not_answered_in_time_is_told_so_and_its_repeat_gets_the_outcome() -> None:
    held: list[tuple[Channel, list[Record]]] = []
    with listening("answer_timeout_s=0.2", lambda channel, records: held.append((channel, records))) as hooks:
        assert post(hooks, b"slow", idempotency_key="1").status_code == 504
        wait_until(lambda: held)
        acknowledge(*held[0])
        wait_until(lambda: post(hooks, b"slow", idempotency_key="1").status_code == 200)
        assert hooks.values == [b"slow"]


def test_a_full_buffer_is_told_to_senders_and_nothing_is_lost() -> None:
    port = free_port()
    channel = open_channel(f"http://127.0.0.1:{port}/hooks?buffer=5&answer_timeout_s=20")
    channel.listen(1, 0.0)
    answers: list[int] = []

    async def send(count: int) -> None:
        async with aiohttp.ClientSession() as session:

            async def one(number: int) -> None:
                async with session.post(f"http://127.0.0.1:{port}/hooks", data=str(number)) as response:
                    answers.append(response.status)

            await asyncio.gather(*(one(number) for number in range(count)))

    thread = threading.Thread(target=asyncio.run, args=(send(30),))
    thread.start()
    wait_until(lambda: answers.count(503) == 25)
    records = channel.listen(100, 5.0)
    assert isinstance(channel, Acknowledging)
    channel.acknowledge(records)
    thread.join(20)
    assert Counter(answers) == {200: 5, 503: 25}
    assert len(records) == 5
    channel.close()


def test_the_bytes_of_all_bodies_together_are_limited() -> None:
    with listening("buffer_bytes=100000", lambda *_: None) as hooks:
        head = b"POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n"
        host, port = "127.0.0.1", int(hooks.url.split(":")[2].split("/")[0])
        with socket.create_connection((host, port), 10) as first:
            first.sendall(head + b"x" * 60_000)
            wait_until(lambda: hooks.records)
            assert b" 503 " in raw(hooks.url, head + b"x" * 60_000)


def test_many_senders_at_once_each_get_their_answer() -> None:
    with listening() as hooks:

        async def send() -> list[int]:
            async with aiohttp.ClientSession() as session:

                async def one(number: int) -> int:
                    async with session.post(hooks.url, data=str(number)) as response:
                        return response.status

                return await asyncio.gather(*(one(number) for number in range(500)))

        assert asyncio.run(send()) == [200] * 500
        assert sorted(int(value or b"") for value in hooks.values) == list(range(500))


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /hooks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        b"POST /hooks HTTP/1.1\r\nX-Long: " + b"x" * 20_000 + b"\r\n\r\n",
        b"POST /hooks HTTP/1.1\r\nBad Header\r\n\r\n",
    ],
    ids=["tls", "negative", "two lengths", "smuggling", "bad chunk", "long header", "bad header"],
)
def test_a_malformed_request_is_refused_and_others_are_served(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with listening() as hooks:
        assert raw(hooks.url, request_bytes).split(b" ")[1:2] == [b"400"]
        assert post(hooks, b"good").status_code == 200
        assert hooks.values == [b"good"]
    assert "Traceback" not in caplog.text


def test_a_body_that_is_cut_off_is_not_stored() -> None:
    with listening() as hooks:
        port = int(hooks.url.split(":")[2].split("/")[0])
        for end in (b"", b"\r\n5\r\nhel"):
            with socket.create_connection(("127.0.0.1", port), 10) as client:
                kind = b"Transfer-Encoding: chunked" if end else b"Content-Length: 100"
                client.sendall(b"POST /hooks HTTP/1.1\r\nHost: a\r\n" + kind + b"\r\n\r\n" + (end or b"half"))
        assert post(hooks, b"whole").status_code == 200
        assert hooks.values == [b"whole"]


def test_slow_clients_are_hung_up_on() -> None:
    with listening("idle_timeout_s=0.3") as hooks:
        port = int(hooks.url.split(":")[2].split("/")[0])
        with (
            socket.create_connection(("127.0.0.1", port), 20) as silent,
            socket.create_connection(("127.0.0.1", port), 20) as slow_head,
            socket.create_connection(("127.0.0.1", port), 20) as slow_body,
        ):
            slow_head.sendall(b"POST /hooks HTTP/1.1\r\nHost: a\r\n")
            slow_body.sendall(b"POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc")
            assert silent.recv(100) == b""
            assert slow_head.recv(100) == b""
            assert b" 408 " in read_answer(slow_body)
        assert not hooks.records


def test_connections_beyond_the_limit_are_told_to_come_back() -> None:
    with listening("max_connections=3&idle_timeout_s=20") as hooks:
        port = int(hooks.url.split(":")[2].split("/")[0])
        idle = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(3)]
        for client in idle:
            client.sendall(b"POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
            assert b" 200 " in read_answer(client)
        assert b" 503 " in raw(hooks.url, b"")
        for client in idle:
            client.close()
        wait_until(lambda: b" 200 " in raw(hooks.url, b"POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"))


def test_pipelined_requests_are_answered_in_order() -> None:
    with listening() as hooks:
        port = int(hooks.url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            for number in range(5):
                client.sendall(b"POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n%d" % number)
            received = b""
            while received.count(b'{"status":"stored"}') < 5:
                received += client.recv(65536)
        assert hooks.values == [b"0", b"1", b"2", b"3", b"4"]


# Repeats


def test_a_repeated_request_is_answered_and_not_stored_again() -> None:
    with listening() as hooks:
        for name in ("idempotency_key", "webhook_id", "x_github_delivery"):
            first, second = (post(hooks, b"{}", **{name: f"id of {name}"}) for _ in range(2))
            assert first.json() == {"status": "stored"}
            assert (second.status_code, second.json()) == (200, {"status": "stored before"})
        assert len(hooks.records) == 3
        mistake = post(hooks, b"another body", webhook_id="id of webhook_id")
        assert mistake.status_code == 422
        assert post(hooks).status_code == post(hooks).status_code == 200
        assert len(hooks.records) == 5


def test_a_key_in_the_body_recognises_repeats() -> None:
    with listening("idempotency_key=json:/id") as hooks:
        assert [post(hooks, b'{"id": "evt_1"}').status_code for _ in range(3)] == [200] * 3
        assert len(hooks.records) == 1


def test_repeats_that_come_while_the_first_is_under_way_wait_for_its_outcome() -> None:
    held: list[list[Record]] = []
    with listening("", lambda _, records: held.append(records)) as hooks, ThreadPoolExecutor(6) as pool:
        assert isinstance(hooks.channel, Acknowledging)
        first = pool.submit(post, hooks, b"x", webhook_id="1")
        wait_until(lambda: held)
        repeats = [pool.submit(post, hooks, b"x", webhook_id="1") for _ in range(5)]
        httpx2.get(hooks.url.replace("/hooks", "/healthz"))
        assert not any(each.done() for each in (first, *repeats))
        hooks.channel.acknowledge(held[0])
        assert [each.result(20).status_code for each in (first, *repeats)] == [200] * 6
        assert hooks.values == [b"x"]


def test_a_repeat_of_a_refused_record_is_a_new_one() -> None:
    held: list[list[Record]] = []
    with listening("", lambda _, records: held.append(records)) as hooks, ThreadPoolExecutor(1) as pool:
        assert isinstance(hooks.channel, Acknowledging)
        first = pool.submit(post, hooks, b"x", webhook_id="1")
        wait_until(lambda: held)
        hooks.channel.refuse(held[0], "disk full", again=True)
        assert first.result(20).status_code == 503
        second = pool.submit(post, hooks, b"x", webhook_id="1")
        wait_until(lambda: len(held) == 2)
        hooks.channel.acknowledge(held[1])
        assert second.result(20).status_code == 200


def test_the_window_of_repeats_is_limited() -> None:
    with listening("idempotency_keys=2") as hooks:
        for key in ("1", "2", "3", "2", "1"):
            assert post(hooks, key.encode(), webhook_id=key).status_code == 200
        assert hooks.values == [b"1", b"2", b"3", b"1"]
    with listening("idempotency_keys=0") as hooks:
        for _ in range(2):
            assert post(hooks, b"x", webhook_id="1").status_code == 200
        assert hooks.values == [b"x", b"x"]


# Signatures and logins


def test_the_vectors_of_the_specifications() -> None:
    body = b'{"test": 2432232314}'
    signed = sign("standard", [STANDARD], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signed["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert problem_with("standard", [STANDARD], signed, body, 1614265330 + 299, 300) == ""
    assert "clock" in problem_with("standard", [STANDARD], signed, body, 1614265330 + 301, 300)
    assert "clock" in problem_with("standard", [STANDARD], signed, body, 1614265330 - 301, 300)
    github = {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    everybody = "It's a Secret to Everybody"
    assert problem_with("github", [everybody], github, b"Hello, World!", 0, 300) == ""
    assert problem_with("github", [everybody], github, b"Hello, World?", 0, 300)
    assert sign("github", [everybody], "", 0, b"Hello, World!") == github
    digest = hmac.new(b"whsec_test", b"12345." + body, hashlib.sha256).hexdigest()
    stripe = {"stripe-signature": f"t=12345,v0=ff,v1={'0' * 64},v1={digest}"}
    assert problem_with("stripe", ["whsec_test"], stripe, body, 12345, 300) == ""
    assert "clock" in problem_with("stripe", ["whsec_test"], stripe, body, 12345 + 301, 300)
    assert problem_with("stripe", ["whsec_test"], {"stripe-signature": f"v1={digest}"}, body, 12345, 300)


@pytest.mark.parametrize("style", ["standard", "github", "stripe"])
def test_only_signed_requests_are_stored(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = new_secret(), new_secret()
    monkeypatch.setenv("HOOK_SECRETS", f"{old} {new}")
    with listening(f"secret_env=HOOK_SECRETS&signature={style}") as hooks:
        now_s = int(time.time())
        for number, secret in enumerate((old, new)):
            body = b"signed %d" % number
            headers = sign(style, [secret], f"m{number}", now_s, body)  # type: ignore[arg-type]
            assert post(hooks, body, **headers).status_code == 200
            tampered = post(hooks, body + b"!", **{**headers, "webhook-id": "m9"})
            assert tampered.status_code == 401
        assert post(hooks, b"unsigned").status_code == 401
        forged = sign(style, [new_secret()], "m3", now_s, b"forged")  # type: ignore[arg-type]
        assert post(hooks, b"forged", **forged).status_code == 401
        if style != "github":
            replayed = sign(style, [old], "m4", now_s - 400, b"old")  # type: ignore[arg-type]
            assert post(hooks, b"old", **replayed).status_code == 401
        compressed = sign(style, [old], "m5", now_s, b"compressed")  # type: ignore[arg-type]
        answer = post(hooks, gzip.compress(b"compressed"), content_encoding="gzip", **compressed)
        assert answer.status_code == 200
        assert hooks.values == [b"signed 0", b"signed 1", b"compressed"]


def test_a_secret_in_a_file_can_be_replaced_while_listening(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    old, new = new_secret(), new_secret()
    file.write_text(old)
    with listening(f"secret_file={file}") as hooks:
        now_s = int(time.time())
        assert post(hooks, b"1", **sign("standard", [old], "1", now_s, b"1")).status_code == 200
        file.write_text(f"{new}\n")
        wait_until(lambda: post(hooks, b"2", **sign("standard", [new], "2", now_s, b"2")).status_code == 200)
        assert post(hooks, b"3", **sign("standard", [old], "3", now_s, b"3")).status_code == 401
        file.unlink()
        assert post(hooks, b"4", **sign("standard", [new], "4", now_s, b"4")).status_code == 200


def test_secrets_are_neither_shown_nor_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOOK_SECRETS", "s3cret-that-is-no-base64!")
    with pytest.raises(ConfigError, match=r"\$HOOK_SECRETS holds a secret that is not base64") as caught:
        Secrets(HttpSettings(secret_env="HOOK_SECRETS"))
    assert "s3cret" not in str(caught.value)
    monkeypatch.setenv("HOOK_SECRETS", STANDARD)
    with listening("secret_env=HOOK_SECRETS") as hooks:
        assert post(hooks).status_code == 401
        assert STANDARD not in repr(hooks.channel)
    assert STANDARD not in caplog.text
    assert "refused 1 requests" in caplog.text
    for setting, problem in (("secret_env=NO_SUCH_THING", "holds no secret"), (f"secret_file={tmp_path}/x", "read")):
        channel = open_channel(f"http://127.0.0.1:{free_port()}/hooks?{setting}")
        with pytest.raises(ConfigError, match=problem):
            channel.listen(1, 0)
        channel.close()


def test_passwords_and_tokens_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("HOOK_TOKEN", "t0ken")
    channel = open_channel(f"http://ann:s%40fe@127.0.0.1:{port}/hooks?token_env=HOOK_TOKEN")
    channel.listen(1, 0.0)
    thread = threading.Thread(target=lambda: acknowledge(channel, list(channel.listen(10, 20.0))))
    url = f"http://127.0.0.1:{port}/hooks"
    assert httpx2.post(url, content=b"1").status_code == 401
    assert httpx2.post(url, content=b"1", auth=("ann", "wrong")).status_code == 401
    thread.start()
    assert httpx2.post(url, content=b"1", auth=("ann", "s@fe")).status_code == 200
    thread.join(20)
    thread = threading.Thread(target=lambda: acknowledge(channel, list(channel.listen(10, 20.0))))
    thread.start()
    assert httpx2.post(url, content=b"1", headers={"authorization": "Bearer t0ken"}).status_code == 200
    thread.join(20)
    channel.close()


def test_tls_and_client_certificates(tmp_path: Path) -> None:
    for name in ("server", "client"):
        (tmp_path / name).mkdir()
    server, client = make_certificate(tmp_path / "server"), make_certificate(tmp_path / "client")
    with listening(f"cert_file={server.file}&key_file={server.key}", scheme="https") as hooks:
        assert httpx2.post(hooks.url, content=b"1", verify=server.trusting()).status_code == 200
        with pytest.raises(httpx2.ConnectError):
            httpx2.post(hooks.url, content=b"1", verify=ssl.create_default_context())
        assert raw(hooks.url, b"POST /hooks HTTP/1.1\r\n\r\n") == b""
    own = f"cert_file={server.file}&key_file={server.key}&ca_file={client.file}"
    with listening(own, scheme="https") as hooks:
        context = server.trusting()
        with pytest.raises(httpx2.TransportError):
            httpx2.post(hooks.url, content=b"1", verify=context)
        context.load_cert_chain(client.file, client.key)
        assert httpx2.post(hooks.url, content=b"1", verify=context).status_code == 200
        assert len(hooks.records) == 1


# What is refused when a channel is opened


def test_an_address_that_others_can_reach_needs_tls_and_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("HOOK_SECRETS", STANDARD)
    files = f"cert_file={certificate.file}&key_file={certificate.key}"
    for scheme, parameters in (
        ("http", ""),
        ("http", "secret_env=HOOK_SECRETS"),
        ("https", files),
    ):
        channel = open_channel(f"{scheme}://0.0.0.0:{free_port()}/hooks?{parameters}")
        with pytest.raises(ConfigError, match="lets every machine that can reach this one send records here"):
            channel.listen(1, 0)
        channel.close()
    for scheme, parameters in (("http", "insecure=true"), ("https", f"{files}&secret_env=HOOK_SECRETS")):
        channel = open_channel(f"{scheme}://0.0.0.0:{free_port()}/hooks?{parameters}")
        assert channel.listen(1, 0) == []
        channel.close()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http:///hooks", "is not http://HOST:PORT/PATH"),
        ("http://a,b/hooks", "is not http://HOST:PORT/PATH"),
        ("http://a:99999/hooks", "is not HOST:PORT"),
        ("http://a/hooks?secret=x", "has no setting 'secret'"),
        ("http://a/hooks?key=customer", "must be header:NAME or json:/POINTER"),
        ("http://a/hooks?buffer=0", "buffer=0 must be positive"),
        ("http://a/hooks?buffer=many", "must be an integer"),
        ("http://a/hooks?secret_env=A&secret_file=b", "exclude each other"),
        ("http://a/hooks?signature=mine", "must be one of standard, github, stripe"),
        ("http://a/hooks?key_file=x", "key_file needs cert_file"),
        ("http://a/hooks?health_path=up", "must begin with a slash"),
        ("http://a/hooks?retry_after_s=-1", "must not be negative"),
        ("http://a/hooks?max_body_bytes=99999999", "must not be larger than"),
    ],
)
def test_a_wrong_url_is_refused_when_it_is_opened(url: str, problem: str) -> None:
    with pytest.raises((ConfigError, UrlError), match=problem):
        open_channel(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://127.0.0.1:1/hooks", "needs a certificate"),
        ("https://127.0.0.1:1/hooks?cert_file=no-such-file", "cannot be used"),
        ("http://127.0.0.1:1/healthz", "is the path of"),
        ("http://no-such-host.invalid:1/hooks", "not a host name"),
    ],
)
def test_a_channel_that_cannot_listen_says_why(url: str, problem: str) -> None:
    channel = open_channel(url)
    with pytest.raises(ConfigError, match=problem):
        channel.listen(1, 0)
    channel.close()
    with pytest.raises(ConnectionClosedError):
        channel.listen(1, 0)


def test_an_address_in_use_may_be_free_later() -> None:
    with listening() as hooks:
        second = open_channel(hooks.url)
        with pytest.raises(BrokerUnavailableError, match="Stop the program that uses the address"):
            second.listen(1, 0)
    assert second.listen(1, 0) == []
    second.close()


def test_a_channel_does_one_of_the_two() -> None:
    with listening() as hooks:
        with pytest.raises(ConfigError, match="listens: open another channel to send"):
            hooks.channel.send([])
        sender = open_channel(hooks.url)
        sender.send([])
        with pytest.raises(ConfigError, match="sends: open another channel to listen"):
            sender.listen(1, 0)
        sender.close()


def test_basic_logins_are_compared_whole() -> None:
    port = free_port()
    channel = open_channel(f"http://ann:safe@127.0.0.1:{port}/hooks")
    channel.listen(1, 0.0)
    for given in ("Basic", "Basic ", f"Basic {base64.b64encode(b'ann:saf').decode()}", "Bearer safe", "ü"):
        answer = raw(
            f"http://127.0.0.1:{port}/",
            b"POST /hooks HTTP/1.1\r\nHost: a\r\nAuthorization: " + given.encode() + b"\r\nContent-Length: 0\r\n\r\n",
        )
        assert b" 401 " in answer
        assert b"WWW-Authenticate: Basic" in answer
    channel.close()
