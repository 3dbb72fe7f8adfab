"""What is let through to the console, and what is not."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.console.web import login
from penstock.console.web.access import FREE_ATTEMPTS, Access
from penstock.console.web.security import Guard, Nonces
from tests.console.web.asking import ask, is_let_in

PASSWORD, TOKEN = "correct horse", "0123456789abcdef0123456789"
SOCKET = "/_nicegui_ws/socket.io/?transport=websocket"
PAGE = "<!doctype html><script>1</script><script type=module>2</script>"
HERE = ("origin", "http://127.0.0.1:8080")


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
    elif scope["path"] == "/prefix":
        seen = [name for name, _ in scope["headers"]]
        await PlainTextResponse(str(b"x-forwarded-prefix" in seen))(scope, receive, send)
    else:
        await HTMLResponse(PAGE)(scope, receive, send)


def guarded(access: Access | None = None, **options: bool) -> ASGIApp:
    app = FastAPI()
    access = access or Access()
    login.register(app, access)
    app.mount("/", inner)
    return Guard(Nonces(app), access, hosts=["console.example"], **options)


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:8080", "console.example", "CONSOLE.example:1"])
def test_the_names_of_the_console_are_let_through(host: str) -> None:
    assert ask(guarded(), host=host).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "192.0.2.7", "localhost@evil.example", "", "[::1", "console.example."],
)
def test_a_name_that_was_made_to_lead_here_is_refused(host: str) -> None:
    assert ask(guarded(), host=host).status == 403
    assert not is_let_in(guarded(), SOCKET, host=host, headers=[("origin", f"http://{host}")])


def test_a_request_without_a_host_or_with_two_is_refused() -> None:
    assert ask(guarded(), host=None).status == 400
    assert ask(guarded(), headers=[("host", "evil.example")]).status == 400


def test_numeric_addresses_are_let_through_only_where_all_of_them_are_listened_on() -> None:
    assert ask(guarded(takes_addresses=True), host="192.0.2.7:8080").status == 200
    assert ask(guarded(takes_addresses=True), host="evil.example").status == 403


def test_a_websocket_of_the_consoles_own_page_is_let_in() -> None:
    assert is_let_in(guarded(), SOCKET, headers=[HERE])
    assert is_let_in(guarded(), SOCKET, host="console.example", headers=[("origin", "https://console.example")])


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://127.0.0.1:9999", "http://127.0.0.1", "null", "", "file://", "http://[", "x"],
)
def test_a_websocket_from_any_other_page_is_refused(origin: str) -> None:
    assert not is_let_in(guarded(), SOCKET, headers=[("origin", origin)])


def test_a_websocket_that_does_not_say_where_it_comes_from_is_refused() -> None:
    assert not is_let_in(guarded(), SOCKET)


def test_the_socket_cannot_be_had_by_plain_requests() -> None:
    assert ask(guarded(), "/_nicegui_ws/socket.io/?transport=polling").status == 403


def test_a_post_from_another_page_or_from_nowhere_is_refused() -> None:
    assert ask(guarded(), "/x", method="POST", headers=[("origin", "http://evil.example")]).status == 403
    assert ask(guarded(), "/x", method="POST").status == 403
    assert ask(guarded(), "/x", method="POST", headers=[HERE]).status == 200


def test_other_pages_may_lead_here_but_not_fetch_anything() -> None:
    foreign = ("sec-fetch-site", "cross-site")
    assert ask(guarded(), headers=[foreign, ("sec-fetch-mode", "navigate")]).status == 200
    assert ask(guarded(), "/api/names", headers=[foreign, ("sec-fetch-mode", "no-cors")]).status == 403


def test_every_answer_carries_the_headers_of_safety() -> None:
    for answer in (ask(guarded()), ask(guarded(), host="evil.example"), ask(guarded(Access(password=PASSWORD)))):
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "'unsafe-inline'" not in answer.headers["content-security-policy"].partition("style-src")[0]


def test_scripts_of_a_page_carry_the_nonce_of_its_policy_and_each_page_has_another() -> None:
    first, second = ask(guarded()), ask(guarded())
    nonce = first.headers["content-security-policy"].partition("'nonce-")[2].partition("'")[0]
    assert first.text.count(f'<script nonce="{nonce}"') == 2
    assert int(first.headers["content-length"]) == len(first.text)
    assert nonce not in second.text


def test_addresses_in_pages_cannot_be_made_by_a_header() -> None:
    assert ask(guarded(), "/prefix", headers=[("X-Forwarded-Prefix", "//evil.example")]).text == "False"


def test_who_is_not_signed_in_sees_nothing_but_the_login() -> None:
    app = guarded(Access(password=PASSWORD))
    page = ask(app, "/topics/a%20b?tab=config", headers=[("accept", "text/html")])
    assert page.status == 303
    assert page.headers["location"].startswith("/login?next=%2Ftopics%2Fa")
    assert ask(app, "/api/names").status == 401
    assert ask(app, "/download/x/0/0/value").status == 401
    assert not is_let_in(app, SOCKET, headers=[HERE])
    assert ask(app, "/login").status == 200


def test_signing_in_gives_a_cookie_that_scripts_and_other_sites_cannot_use() -> None:
    app = guarded(Access(password=PASSWORD))
    answer = ask(app, "/login", method="POST", headers=[HERE], body=b"secret=correct+horse&next=/topics")
    cookie = answer.headers["set-cookie"]
    assert (answer.status, answer.headers["location"]) == (303, "/topics")
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert "secure" not in cookie.lower()
    signed_in = [("cookie", cookie.partition(";")[0])]
    assert ask(app, "/", headers=signed_in).status == 200
    assert is_let_in(app, SOCKET, headers=[HERE, *signed_in])
    assert ask(app, "/logout", method="POST", headers=[HERE, *signed_in]).status == 303
    assert ask(app, "/", headers=signed_in).status == 401


def test_behind_https_the_cookie_is_for_https_only() -> None:
    headers = [("origin", "https://console.example"), ("x-forwarded-proto", "https")]
    app = guarded(Access(password=PASSWORD))
    answer = ask(app, "/login", method="POST", host="console.example", headers=headers, body=b"secret=correct+horse")
    assert "; secure" in answer.headers["set-cookie"].lower()


def test_guessing_passwords_is_slowed_down() -> None:
    app = guarded(Access(password=PASSWORD))
    statuses = [
        ask(app, "/login", method="POST", headers=[HERE], body=b"secret=guess").status for _ in range(FREE_ATTEMPTS + 1)
    ]
    assert statuses == [403] * FREE_ATTEMPTS + [429]
    right = ask(app, "/login", method="POST", headers=[HERE], body=b"secret=correct+horse")
    assert right.status == 429
    assert int(right.headers["retry-after"]) >= 1


def test_a_form_from_another_page_signs_nobody_in() -> None:
    app = guarded(Access(password=PASSWORD))
    headers = [("origin", "http://evil.example")]
    assert ask(app, "/login", method="POST", headers=headers, body=b"secret=correct+horse").status == 403


def test_a_login_form_that_is_far_too_large_is_not_read() -> None:
    app = guarded(Access(password=PASSWORD))
    assert ask(app, "/login", method="POST", headers=[HERE], body=b"secret=" + b"x" * 100_000).status == 413


@pytest.mark.parametrize(
    "path",
    ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/\r\nset-cookie: a=b", "javascript:1"],
)
def test_after_signing_in_nobody_is_sent_elsewhere(path: str) -> None:
    assert login.safe_next(path) == "/"
    app = guarded(Access(password=PASSWORD))
    assert "evil" not in ask(app, "/login", headers=[]).text


def test_what_stands_in_the_address_of_the_login_is_escaped() -> None:
    app = guarded(Access(password=PASSWORD))
    assert "<script>" not in ask(app, '/login?next=/"><script>alert(1)</script>').text


def test_programs_come_in_with_the_token() -> None:
    app = guarded(Access(token=TOKEN))
    assert ask(app, "/api/names", headers=[("authorization", f"Bearer {TOKEN}")]).status == 200
    wrong = [("authorization", "Bearer wrong")]
    assert [ask(app, "/api/names", headers=wrong).status for _ in range(FREE_ATTEMPTS + 1)] == [401] * FREE_ATTEMPTS + [
        429
    ]
