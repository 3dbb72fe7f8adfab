"""The console as an application, and serving it."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Final

import uvicorn
from fastapi import FastAPI
from fastapi.exception_handlers import http_exception_handler
from nicegui import Client, app, core, ui
from nicegui.page import page
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock.console.service import Service
from penstock.console.web import login, pages, parts, texts
from penstock.console.web.access import Access, check_reach
from penstock.console.web.assets import FOLDER, Assets, head
from penstock.console.web.frame import ENTRIES, Console, frame
from penstock.console.web.security import SESSION_ID, Guard, Nonces
from penstock.errors import ConfigError, PenstockError
from penstock.model.addresses import is_loopback
from penstock.streams.url import without_password


def register(console: Console) -> None:
    @app.exception_handler(404)
    async def missing(request: Request, error: HTTPException) -> Response:
        """Answer programs and asset requests in plain text; show people a page with a link back."""
        if "text/html" not in request.headers.get("accept", ""):
            return await http_exception_handler(request, error)
        with Client(page(""), request=request) as client, frame(console, "No such page", ""):
            parts.title("There is no such page")
            with parts.panel():
                parts.empty("Nothing is at this address.", request.url.path)
                with ui.element("a").props('href="/"').classes("link"):
                    parts.label("Go to the overview")
        return client.build_response(request, 404)


SOCKET_BYTES: Final = 4 * 1024 * 1024
GRACE_S: Final = 2
SESSIONS_EVERY_S: Final = 5.0
log = logging.getLogger(__name__)


def build(service: Service, access: Access, *, hosts: Iterable[str] = (), takes_addresses: bool = False) -> ASGIApp:
    """The whole console as an ASGI application. NiceGUI keeps its pages per process, so there is one in a process.

    `hosts` and `takes_addresses`: the host names it accepts, see `security.Guard`."""
    console = Console(service, access)
    outer = FastAPI(title="Penstock console", docs_url=None, redoc_url=None, openapi_url=None)
    outer.mount("/assets", Assets())
    login.register(outer, access, _end_pages)
    _register_answers(outer, console)
    pages.register(console)
    register(console)
    app.on_page_exception(_show_failure)
    app.on_startup(lambda: _end_pages_of_the_past(access))
    Client.shared_head_html += head()
    core.app.config.socket_io_js_transports[:] = ["websocket"]
    ui.run_with(
        outer,
        title="Penstock",
        favicon=FOLDER / "mark.svg",
        dark=None,
        language="en-US",
        tailwind=False,
        binding_refresh_interval=None,
        gzip_middleware_factory=None,
        reconnect_timeout=10.0,
        message_history_length=100,
        show_welcome_message=False,
    )
    # Scripts get their nonce before the response is compressed.
    answering = GZipMiddleware(Nonces(outer), minimum_size=1000, compresslevel=5)
    return Guard(answering, access, hosts=hosts, takes_addresses=takes_addresses)


def serve(
    service: Service,
    access: Access,
    host: str,
    port: int,
    *,
    names: Iterable[str] = (),
    on_listening: Callable[[str], None] = lambda address: None,
    stop: threading.Event | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, or until `stop` is set. `on_listening` is called with the address.

    Elsewhere than on loopback a password or token is needed."""
    check_reach(host, access)
    listening = listen(host, port)
    try:
        port = listening.getsockname()[1]
        is_everywhere = host in ("0.0.0.0", "::", "")
        known = [*names, *([socket.gethostname()] if is_everywhere else [host])]
        access.cookie = f"{access.cookie}-{port}"
        application = build(service, access, hosts=known, takes_addresses=is_everywhere)
        config = uvicorn.Config(
            application,
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ws_max_size=SOCKET_BYTES,
            ws_per_message_deflate=not is_loopback(host),
            timeout_graceful_shutdown=GRACE_S,
        )
        server = uvicorn.Server(config)
        shown_host = "127.0.0.1" if is_everywhere else f"[{host}]" if ":" in host else host
        app.on_startup(lambda: on_listening(f"http://{shown_host}:{port}"))
        if stop is not None:
            app.on_startup(lambda: _end_with(server, stop))
        server.run(sockets=[listening])
    finally:
        listening.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigError(
            f"the console cannot listen on {host}:{port}: {error}; choose another with --listen HOST:PORT, "
            "port 0 takes a free one"
        ) from error
    return listening


def _end_pages(session_id: str) -> None:
    """End all pages of a session that was signed out in one tab."""
    for client in list(Client.instances.values()):
        if client.request.scope.get(SESSION_ID) == session_id:
            _end_page(client)


async def _end_pages_of_the_past(access: Access) -> None:
    """End open pages whose sessions have expired, as an open page does not authenticate again."""
    while True:
        await asyncio.sleep(SESSIONS_EVERY_S)
        for client in list(Client.instances.values()):
            id = client.request.scope.get(SESSION_ID)
            if id is not None and access.session(id) is None:
                _end_page(client)


def _end_page(client: Client) -> None:
    """Send it to the login page, and then end it here in any case."""
    client.run_javascript("location.reload()")
    asyncio.get_running_loop().call_later(GRACE_S, _forget, client)


def _forget(client: Client) -> None:
    if client.id in Client.instances:
        client.delete()


async def _end_with(server: uvicorn.Server, stop: threading.Event) -> None:
    await asyncio.get_running_loop().run_in_executor(None, stop.wait)
    server.should_exit = True


def _register_answers(outer: FastAPI, console: Console) -> None:
    @outer.get("/health")
    def health() -> dict[str, str]:
        """For monitoring the console itself: it answers. The state of the stream is included."""
        return {"console": "answers", "stream": "away" if console.service.snapshot().problem else "answers"}

    @outer.get("/api/names")
    def names() -> list[dict[str, str]]:
        """What the search finds: pages, topics, groups, dead-letter stores and pipelines, with their addresses."""
        snapshot = console.service.snapshot()
        found = [{"kind": "page", "name": entry.label, "path": entry.path} for entry in ENTRIES]
        for kind, noun, known in (
            ("topic", "topics", snapshot.topics),
            ("group", "groups", snapshot.groups),
            ("dead letters", "letters", snapshot.letters),
            ("pipeline", "pipelines", snapshot.pipelines),
        ):
            shown = sorted(map(without_password, known))
            found += [{"kind": kind, "name": name, "path": texts.path_to(noun, name)} for name in shown]
        return found


def _show_failure(error: Exception) -> None:
    """The page that is shown when a page could not be drawn."""
    if not isinstance(error, PenstockError):
        log.error("a page could not be drawn", exc_info=error)
    with ui.element("div").classes("page failure"):
        text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: see the console's log"
        parts.empty("This page could not be shown", text)
        with ui.element("a").props('href="/"').classes("link"):
            ui.label("Go to the overview")
