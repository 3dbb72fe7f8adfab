"""The style sheet and the script of the console: files in the package, so that nothing is loaded from elsewhere."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER: Final = Path(__file__).parent / "static"


@functools.cache
def address_of_asset(name: str) -> str:
    """Its URL contains a digest of its content, so that browsers may cache it for ever."""
    return f"/assets/{name}?v={hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:12]}"


class Assets(StaticFiles):
    def __init__(self) -> None:
        super().__init__(directory=FOLDER)

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = "public, max-age=31536000, immutable"
        return answer


def head() -> str:
    return (
        f'<link rel="stylesheet" href="{address_of_asset("console.css")}">\n'
        f'<script defer src="{address_of_asset("console.js")}"></script>\n'
    )


COOKIE: Final = "penstock-theme"


@dataclass(frozen=True, slots=True)
class Theme:
    name: str
    is_dark: bool | None
    """None: the system's."""


THEMES: Final = {"light": Theme("light", False), "dark": Theme("dark", True), "auto": Theme("auto", None)}


def theme_of(request: Request) -> Theme:
    """The browser's choice; anything unknown is auto."""
    return THEMES.get(request.cookies.get(COOKIE, "auto"), THEMES["auto"])
