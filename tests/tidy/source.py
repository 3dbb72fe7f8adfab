"""The files of the repository, as the tidy rules see them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PYTHON_ROOTS: Final = ("src", "tests", "tools", "benchmarks", "examples")


@dataclass(frozen=True, slots=True)
class Complaint:
    """One place where a habit is broken, and what to do there."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Source:
    """One file: its path from the checkout, with forward slashes, and its text."""

    path: str
    text: str

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.split("/"))

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py") and self.parts[0] in PYTHON_ROOTS

    @property
    def is_test(self) -> bool:
        return self.is_python and self.parts[0] == "tests"

    @property
    def room(self) -> str | None:
        """The room of a module of the package: `log` for src/penstock/log/batches/batch.py; "" for the package's own
        `__init__.py`; None for a file that is no module of the package."""
        if not self.is_python or self.parts[:2] != ("src", "penstock"):
            return None
        return self.parts[2].removesuffix(".py").replace("__init__", "")

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    def complain(self, where: ast.AST | int, text: str) -> Complaint:
        return Complaint(self.path, where if isinstance(where, int) else getattr(where, "lineno", 1), text)


@functools.cache
def repository() -> tuple[Source, ...]:
    """Every text file that belongs to the repository, which is every one that .gitignore does not name."""
    return tuple(_text_files(ROOT))


def python_packages() -> list[Path]:
    """Every folder with Python modules below the package, the package itself included."""
    return sorted({(ROOT / source.path).parent for source in repository() if source.room is not None})


def _text_files(folder: Path) -> Iterator[Source]:
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or _is_ignored(path):
            continue
        if path.is_dir():
            yield from _text_files(path)
        else:
            try:
                yield Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
            except UnicodeDecodeError:
                continue  # an image or the like: there is nothing to read in it
            except FileNotFoundError:
                continue  # removed while we were looking, such as another test's scratch file


def _is_ignored(path: Path) -> bool:
    """Whether .gitignore names the path: `/name/` in the checkout itself, `name/` and `*.end/` anywhere."""
    anchored = f"/{path.name}/" if path.parent == ROOT else None
    patterns = _ignore_patterns()
    return anchored in patterns or any(fnmatchcase(path.name + "/", pattern) for pattern in patterns)


@functools.cache
def _ignore_patterns() -> frozenset[str]:
    return frozenset({".git/", *(ROOT / ".gitignore").read_text(encoding="utf-8").split()})
