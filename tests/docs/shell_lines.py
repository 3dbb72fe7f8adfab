"""What a page tells its reader to type, in pieces: those that are run, and those that are looked at instead.

`make` would begin this very test run again, and `pip install` would change what is being tested: of those, the target
and the extras must exist. What serves for ever is started, and ended at the end of the page or by `kill %1`.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.docs.blocks import ROOT

_SERVES: Final = re.compile(
    r"penstock (serve|console|metrics)\b(?!.*--(once|help)\b)|penstock (consume|lag)\b.*(--follow|--watch)\b"
)
_LOOKED_AT: Final = re.compile(r"(make|git clone|pip install|python3? -m venv|(\.|source) \S+/activate|cd penstock)\b")
_EXTRAS: Final = re.compile(r"^(?P<package>\.|penstock)(\[(?P<extras>[\w,-]+)\])?$")
OTHER_PACKAGES: Final = frozenset({"venv-pack", "pytest"})
"""Packages that pages tell their reader to install beside Penstock."""


class Kind(Enum):
    RUN = "run to its end"
    START = "started, and left running"
    LOOK = "looked at"
    STOP = "ends what was started last"


@dataclass(frozen=True, slots=True)
class Piece:
    kind: Kind
    text: str


def commands_of(language: str, text: str) -> str:
    """What is typed: of a `console` block, the lines behind the prompts; they go on behind a backslash."""
    if language != "console":
        return text
    typed, goes_on = [], False
    for line in text.splitlines():
        if line.startswith("$ ") or goes_on:
            typed.append(line if goes_on else line[2:])
            goes_on = line.endswith("\\")
    return "\n".join(typed) + "\n"


def pieces(text: str) -> Iterator[Piece]:
    """In their order; lines that are run to their end stay together, as they may depend on each other."""
    if "<<" in text:
        yield Piece(Kind.RUN, text)
        return
    together: list[str] = []
    for line in text.replace("\\\n", "").splitlines():
        kind = _kind_of(line.strip())
        if kind is Kind.RUN:
            together.append(line)
            continue
        if "".join(together).strip():
            yield Piece(Kind.RUN, "\n".join(together))
        together = []
        yield Piece(kind, line.strip().removesuffix("&").strip())
    if "".join(together).strip():
        yield Piece(Kind.RUN, "\n".join(together))


def _kind_of(line: str) -> Kind:
    command = line.partition("#")[0].strip() if not line.startswith("#") else ""
    if command == "kill %1":
        return Kind.STOP
    if _LOOKED_AT.match(command):
        return Kind.LOOK
    if command.endswith("&") and not command.endswith("&&"):
        return Kind.START
    return Kind.START if _SERVES.match(command) else Kind.RUN


def complaint_about(line: str) -> str | None:
    """What is wrong with a line that is looked at."""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
        missing = [word for word in words[1:] if "=" not in word and word not in targets]
        return f"the Makefile has no {', '.join(missing)}" if missing else None
    if words[:2] != ["pip", "install"]:
        return None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for word in words[2:]:
        asked = _EXTRAS.match(word)
        if asked is None and word not in OTHER_PACKAGES and not word.startswith("-"):
            return f"{word} is neither Penstock nor a package that pages speak of"
        for extra in (asked["extras"] or "").split(",") if asked else ():
            if extra and extra not in project["optional-dependencies"]:
                return f"penstock has no extra {extra!r}"
    return None
