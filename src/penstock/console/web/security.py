"""What stands in front of everything: one ASGI application that lets only the right requests through.

A page opened elsewhere must not reach the console through the browser. So the Host header must be a known name of the
console (an attacker's name that resolves to 127.0.0.1, "DNS rebinding", is not), and whatever can act (every WebSocket,
every request that is not GET or HEAD) must come from a page of the console itself, by its Origin. All changes are made
over the WebSocket. After that comes the login, where there is one.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.console.web.access import Access, Session, TooManyAttempts
from penstock.errors import SignInError

SESSION: Final = "penstock.session"
"""The key of the checked session in an ASGI scope."""
SESSION_ID: Final = "penstock.session_id"
NONCE: Final = "penstock.nonce"
SOCKET: Final = "/_nicegui_ws/"
OPEN: Final = ("/login", "/health", "/assets/")
"""What can be seen before signing in: it reveals nothing about the stream."""
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
# Pages are built from templates in the browser, which needs `unsafe-eval`. Inline scripts need the nonce of their
# response, so a script that is injected later, such as an `onerror` in a record, could not run.
POLICY: Final = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class Refused(Exception):
    def __init__(self, status: int, reason: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers or {}


class Guard:
    def __init__(self, app: ASGIApp, access: Access, *, hosts: Iterable[str], takes_addresses: bool = False) -> None:
        """`hosts`: accepted names in Host, besides those of loopback. `takes_addresses`: also accept every numeric
        address, as when listening on all of them; those cannot be rebound."""
        self._app = app
        self._access = access
        self._hosts = {*LOOPBACK_NAMES, *(host.strip("[]").lower() for host in hosts)}
        self._takes_addresses = takes_addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        # URLs in pages are built from this header, which no trusted client sends here.
        scope["headers"] = [pair for pair in scope["headers"] if pair[0].lower() != b"x-forwarded-prefix"]
        scope[NONCE] = secrets.token_urlsafe(16)
        adorned = _adorning(send, scope) if scope["type"] == "http" else send
        try:
            self._check_host(scope)
            self._check_origin(scope)
            self._check_login(scope)
        except Refused as refused:
            await _refuse(refused, scope, receive, adorned)
        else:
            await self._app(scope, receive, adorned)

    def _check_host(self, scope: Scope) -> None:
        given = Headers(scope=scope).getlist("host")
        if len(given) != 1:
            raise Refused(400, "The request must have exactly one Host header.")
        host = _host_in(given[0])
        if host in self._hosts or (self._takes_addresses and _is_address(host)):
            return
        raise Refused(
            403,
            "This console does not know the name in your address bar. Use the address that it printed when it was "
            "started, or start it with --host-name NAME.",
        )

    def _check_origin(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        is_socket = scope["type"] == "websocket"
        if not is_socket and scope["path"].startswith(SOCKET):
            raise Refused(403, "This address accepts only WebSockets.")
        origin = headers.get("origin")
        if origin is not None and not _is_same(origin, headers["host"]):
            raise Refused(403, "The request comes from a page that is not of this console.")
        if not is_socket and scope["method"] in ("GET", "HEAD"):
            is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
            if is_foreign and headers.get("sec-fetch-mode") != "navigate":
                raise Refused(403, "The request comes from a page that is not of this console.")
        elif origin is None and "authorization" not in headers:
            raise Refused(403, "The request does not say which page it comes from (Origin).")

    def _check_login(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        id = _cookie_in(headers.get("cookie", ""), self._access.cookie)
        session = self._access.session(id)
        scope[SESSION_ID] = id if session is not None else None
        scope[SESSION] = session or self._bearer(headers.get("authorization"), scope)
        if scope[SESSION] is None and not scope["path"].startswith(OPEN):
            wants_page = scope["type"] == "http" and "text/html" in headers.get("accept", "")
            if wants_page and scope["method"] == "GET":
                raise Refused(303, "Sign in first.", {"location": f"/login?next={quote(_asked_for(scope), safe='')}"})
            raise Refused(401, "Sign in first.", {"www-authenticate": 'Bearer realm="penstock"'})

    def _bearer(self, authorization: str | None, scope: Scope) -> Session | None:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        try:
            return self._access.bearer(token.strip(), address_of(scope))
        except TooManyAttempts as error:
            raise Refused(429, str(error), {"retry-after": str(max(1, round(error.wait_s)))}) from error
        except SignInError as error:
            raise Refused(401, str(error), {"www-authenticate": 'Bearer realm="penstock"'}) from error


class Nonces:
    """Gives every script of a page the nonce of the page's policy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = bytearray()

        async def changed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_page(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body.extend(message.get("body", b""))
                if not message.get("more_body"):
                    # All text of others in a page is escaped, so what looks like a script here is ours.
                    page = bytes(body).replace(b"<script", b'<script nonce="%s"' % scope[NONCE].encode())
                    MutableHeaders(raw=start["headers"])["content-length"] = str(len(page))
                    await send(start)
                    await send({"type": "http.response.body", "body": page})

        await self._app(scope, receive, changed)


def address_of(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def is_https(scope: Scope) -> bool:
    """Whether the browser used https, perhaps to a proxy. It only decides whether the cookie is for https alone; a
    false claim gets a cookie that does not work."""
    return scope.get("scheme") in ("https", "wss") or Headers(scope=scope).get("x-forwarded-proto") == "https"


def _is_page(message: Message) -> bool:
    return Headers(raw=message["headers"]).get("content-type", "").startswith("text/html")


def _adorning(send: Send, scope: Scope) -> Send:
    async def adorned(message: Message) -> None:
        if message["type"] == "http.response.start":
            message.setdefault("headers", [])
            headers = MutableHeaders(raw=message["headers"])
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("content-security-policy", POLICY.format(nonce=scope[NONCE]))
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return adorned


async def _refuse(refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        # Closed before it was accepted: the server answers the handshake with 403.
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": str(refused)})
        return
    answer: Response
    if refused.status == 303:
        answer = RedirectResponse(refused.headers["location"], status_code=303)
    else:
        answer = PlainTextResponse(f"{refused}\n", status_code=refused.status, headers=refused.headers)
    await answer(scope, receive, send)


def _host_in(header: str) -> str:
    """The name in `name`, `name:port`, `[::1]:port`."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_same(origin: str, host: str) -> bool:
    """Whether a page of `origin` belongs to this host. Ports count; the scheme's default port may be omitted."""
    try:
        ours, theirs = urlsplit(f"//{host}"), urlsplit(origin)
        if theirs.scheme not in ("http", "https") or theirs.hostname is None:
            return False
        usual = 443 if theirs.scheme == "https" else 80
        return (theirs.hostname, theirs.port or usual) == (ours.hostname, ours.port or usual)
    except ValueError:
        return False


def _cookie_in(header: str, name: str) -> str | None:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return None
    return found.value if found is not None else None


def _asked_for(scope: Scope) -> str:
    query = scope.get("query_string", b"").decode("latin-1")
    return quote(str(scope["path"])) + (f"?{query}" if query else "")
