"""What somebody has chosen on a page, kept in its address: going back to the page, loading it anew, and sending the
address to somebody else show the same."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import urlencode

from nicegui import ui

LONGEST: Final = 4_000
"""What is longer is not kept: browsers and proxies take addresses of some kilobytes."""


class Chosen:
    """The choices of one open page, which is at `path`. What the address says of others is none of its business."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._asked = dict(ui.context.client.request.query_params)
        self._kept = {name: text for name, text in self._asked.items() if text}

    def asked(self, name: str, default: str = "", among: Collection[str] | None = None) -> str:
        """What the address asks for; `default` where it asks for nothing that there is."""
        text = self._asked.get(name, default)
        return text if among is None or text in among else default

    def keep(self, **chosen: str) -> None:
        """These are chosen now; an empty text stands for what is chosen at first."""
        kept = {name: text for name, text in {**self._kept, **chosen}.items() if text}
        if kept != self._kept:
            self._kept = kept
            ui.navigate.history.replace(address(self._path, kept))


def address(path: str, chosen: dict[str, str]) -> str:
    query = urlencode(chosen)
    return f"{path}?{query}" if query and len(query) <= LONGEST else path
