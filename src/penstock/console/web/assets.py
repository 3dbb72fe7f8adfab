"""The style sheet and the script of the console: files in the package, so that nothing comes from elsewhere."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Final

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER: Final = Path(__file__).parent / "static"


@functools.cache
def address_of_asset(name: str) -> str:
    """Its address has a digest of its content in it, so that a browser may keep it for ever."""
    return f"/assets/{name}?v={hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:12]}"


class Assets(StaticFiles):
    """Serves them."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = "public, max-age=31536000, immutable"
        return answer


def head() -> str:
    """What every page has in its head."""
    return (
        f'<link rel="stylesheet" href="{address_of_asset("console.css")}">\n'
        f'<script defer src="{address_of_asset("console.js")}"></script>\n'
    )
