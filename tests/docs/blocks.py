"""The blocks of code of a page, and what is to be done with each.

Every fenced block says its language. `python`, `sh` and `console` are run, `json`, `toml` and `yaml` must be such text,
`text` is not code. Comments, which a reader of the page does not see, say the rest:

- `<!-- not run: why -->` before a block: it is not run, and the tests list it with its reason;
- `<!-- run: python` or `<!-- run: sh`, lines of code, `-->`: is run as a block at this place would be: what a snippet
  takes for granted, and what checks that it did what the page says;
- `<!-- part of: FILE -->` before a block: it stands in that file, word for word, which has tests of its own;
- `<!-- kafka -->`, `<!-- postgres -->`, `<!-- connector -->`: the page is about such a server, and gets one, at the
  address that it names, or about Spark's Kafka connector.

A `python` block whose first line is a file's name, `# app.py`, is written to that file instead of being run: what is
beside it on the page runs the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PYTHON: Final = ("python",)
SHELL: Final = ("sh", "bash", "console")
DATA: Final = ("json", "toml", "yaml")
PLAIN: Final = ("text",)

_PIECE: Final = re.compile(
    r"^(?P<indent>[ ]*)(?P<fence>`{3,})(?P<mark>[^\n`]*)\n(?P<text>.*?)^(?P=indent)(?P=fence)[ ]*$"
    r"|^<!-- run: (?P<hidden>python|sh)\n(?P<code>.*?)^-->$"
    r"|^[ ]*<!-- not run: (?P<why>[^\n]*?) -->$"
    r"|^<!-- part of: (?P<part>\S+) -->$",
    re.MULTILINE | re.DOTALL,
)
_OF_SPARK: Final = re.compile(r"\bpyspark\b|penstock\.spark\b|penstock run\b")
_MARKED_IN_FENCE: Final = "not-run:"
_FILE: Final = re.compile(r"# (?P<name>[\w./-]+\.py)\n")
_SERVER: Final = re.compile(r"^<!-- (kafka|postgres|redis|nats|connector) -->$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of code, and where it stands."""

    page: str
    line: int
    """Of its first line of code, counted from 1."""
    language: str
    text: str
    why_not: str = ""
    """Why it is not run; empty for those that are."""
    shown: bool = True
    part_of: str = ""
    """The file that it is an excerpt of; empty for those that are none."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that it is written to, if it is."""
        named = _FILE.match(self.text) if self.language in PYTHON else None
        return named["name"] if named else None

    @property
    def is_run(self) -> bool:
        return not self.why_not and not self.part_of and self.language in (*PYTHON, *SHELL)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the documentation, or the README."""

    name: str
    blocks: tuple[Block, ...]
    servers: frozenset[str]

    @property
    def needs_spark(self) -> bool:
        return any(block.is_run and _OF_SPARK.search(block.text) for block in self.blocks)

    @property
    def is_run(self) -> bool:
        return any(block.is_run for block in self.blocks)


def pages() -> Iterator[Page]:
    """The README and every page of the documentation, by name. Decisions are history, and stay as they were written."""
    docs = ROOT / "docs"
    for path in (ROOT / "README.md", *sorted(docs.rglob("*.md"))):
        if not path.is_relative_to(docs / "adr"):
            yield page_of(str(path.relative_to(ROOT)), path.read_text("utf-8"))


def page_of(name: str, text: str) -> Page:
    return Page(name, tuple(_blocks(name, text)), frozenset(_SERVER.findall(text)))


def _blocks(name: str, text: str) -> Iterator[Block]:
    nothing = {"why": "", "part": ""}
    said, said_until = nothing, 0
    for piece in _PIECE.finditer(text):
        if piece["why"] or piece["part"]:
            said, said_until = {"why": piece["why"] or "", "part": piece["part"] or ""}, piece.end()
            continue
        if piece["hidden"]:
            line = text.count("\n", 0, piece.start("code")) + 1
            yield Block(name, line, piece["hidden"], piece["code"], shown=False)
            continue
        if text[said_until : piece.start()].strip():
            said = nothing
        language, _, rest = piece["mark"].strip().partition(" ")
        reason = said["why"] or rest.partition(_MARKED_IN_FENCE)[2].strip()
        line = text.count("\n", 0, piece.start("text")) + 1
        code = _without_indent(piece["text"], piece["indent"])
        yield Block(name, line, language, code, reason, part_of=said["part"])
        said = nothing


def _without_indent(text: str, indent: str) -> str:
    return "\n".join(line.removeprefix(indent) for line in text.split("\n"))
