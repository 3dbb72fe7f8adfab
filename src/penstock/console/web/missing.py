"""The page for addresses at which there is none."""

from __future__ import annotations

from fastapi.exception_handlers import http_exception_handler
from nicegui import Client, app, ui
from nicegui.page import page
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from penstock.console.web import parts
from penstock.console.web.frame import Console, frame


def register(console: Console) -> None:
    @app.exception_handler(404)
    async def missing(request: Request, error: HTTPException) -> Response:
        """Programs, and what pages load, are answered in plain words; people see a page that leads back."""
        if "text/html" not in request.headers.get("accept", ""):
            return await http_exception_handler(request, error)
        with Client(page(""), request=request) as client, frame(console, "No such page", ""):
            parts.title("There is no such page")
            with parts.panel():
                parts.empty("Nothing is at this address.", request.url.path)
                with ui.element("a").props('href="/"').classes("link"):
                    parts.label("Go to the overview")
        return client.build_response(request, 404)
