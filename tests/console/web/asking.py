"""Requests to an ASGI application without a server: every header is as the test says, also those that clients set."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message


@dataclass
class Answer:
    status: int = 0
    headers: Headers = field(default_factory=lambda: Headers(raw=[]))
    text: str = ""


def ask(
    app: ASGIApp,
    path: str = "/",
    *,
    method: str = "GET",
    host: str | None = "127.0.0.1:8080",
    headers: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
    address: str = "127.0.0.1",
) -> Answer:
    """What it answers to a request."""
    sent = asyncio.run(_run(app, {**_scope("http", path, host, headers, address), "method": method}, body))
    answer = Answer()
    for message in sent:
        if message["type"] == "http.response.start":
            answer.status, answer.headers = message["status"], Headers(raw=list(message["headers"]))
        else:
            answer.text += message.get("body", b"").decode()
    return answer


def is_let_in(
    app: ASGIApp, path: str, *, host: str = "127.0.0.1:8080", headers: Sequence[tuple[str, str]] = ()
) -> bool:
    """Whether it accepts a WebSocket."""
    sent = asyncio.run(_run(app, _scope("websocket", path, host, headers, "127.0.0.1"), b""))
    return bool(sent) and sent[0]["type"] == "websocket.accept"


def _scope(type: str, path: str, host: str | None, headers: Sequence[tuple[str, str]], address: str) -> dict[str, Any]:
    path, _, query = path.partition("?")
    given = [*([] if host is None else [("host", host)]), *headers]
    return {
        "type": type,
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http" if type == "http" else "ws",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in given],
        "client": (address, 1),
        "server": ("127.0.0.1", 8080),
    }


async def _run(app: ASGIApp, scope: dict[str, Any], body: bytes) -> list[Message]:
    sent: list[Message] = []
    first: Message = (
        {"type": "http.request", "body": body} if scope["type"] == "http" else {"type": "websocket.connect"}
    )
    coming = [first]

    async def receive() -> Message:
        return coming.pop(0) if coming else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent
