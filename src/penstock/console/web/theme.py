"""Light, dark, or as the system has it: remembered by the browser in a cookie, so that the first paint is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

COOKIE: Final = "penstock-theme"


@dataclass(frozen=True, slots=True)
class Theme:
    name: str
    """light, dark or auto."""
    is_dark: bool | None
    """None: as the system has it."""


THEMES: Final = {"light": Theme("light", False), "dark": Theme("dark", True), "auto": Theme("auto", None)}


def theme_of(request: Request) -> Theme:
    """What the browser remembers; anything else is taken as auto."""
    return THEMES.get(request.cookies.get(COOKIE, "auto"), THEMES["auto"])
