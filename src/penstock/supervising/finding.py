"""Which programs files and folders contain, found without running them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError

_MAKERS: Final = {
    "App": ("penstock", "penstock.app"),
    "LakeSink": ("penstock.lakes", "penstock.lakes.sink"),
    "Pipeline": ("penstock.spark", "penstock.spark.pipeline"),
}
"""What a program creates, and the modules it comes from."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to supervise."""

    name: str
    file: Path
    arguments: tuple[str, ...]
    """The arguments of `penstock run`, with the file."""


def programs_in(paths: Sequence[Path]) -> list[Program]:
    """The programs of these files and folders, in this order.

    A file is taken as it is. Of a folder, those files are taken, by name, that create an `App`, a `Pipeline` or a
    `LakeSink`, or cannot be parsed; files of tests are not, and folders inside it are not searched. Raises ConfigError
    for a path that does not exist, for a file named twice, and for a folder without programs.
    """
    files: list[Path] = []
    for path in paths:
        path = path.expanduser().absolute()
        if path.is_dir():
            found = [file for file in sorted(path.glob("*.py")) if not _is_test(file) and _may_run(file)]
            if not found:
                raise ConfigError(f"no file in {path} creates an App, a Pipeline or a LakeSink: name the programs")
            files += found
        elif path.is_file():
            files.append(path)
        else:
            raise ConfigError(f"there is no file or folder {path}")
    for file, count in Counter(files).items():
        if count > 1:
            raise ConfigError(f"{file} is named {count} times: each program runs once")
    stems = Counter(file.stem for file in files)
    names = [file.stem if stems[file.stem] == 1 else f"{file.parent.name}-{file.stem}" for file in files]
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(f"{count} programs would be called {name}: rename a file, so that their logs differ")
    return [Program(name, file, (str(file),)) for name, file in zip(names, files, strict=True)]


def local_modules(file: Path) -> Iterator[Path]:
    """The file, and the modules in its folder that it imports, directly or through others."""
    seen, waiting = set[Path](), [file]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        yield module
        for name in _imported(module):
            beside = file.parent.joinpath(*name.split("."))
            waiting += [each for each in (beside.with_suffix(".py"), beside / "__init__.py") if each.is_file()]


def uses_spark(file: Path) -> bool:
    """Whether a program, or a module in its folder that it imports, imports PySpark or `penstock.spark`."""
    return any(
        name.split(".")[0] == "pyspark" or name.startswith("penstock.spark")
        for module in local_modules(file)
        for name in _imported(module)
    )


def _imported(file: Path) -> list[str]:
    found = []
    for node in _nodes(file) or ():
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def _may_run(file: Path) -> bool:
    """Whether a file creates one of `_MAKERS`. A file that cannot be parsed counts: running it shows the error."""
    nodes = _nodes(file)
    if nodes is None:
        return True
    direct = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module in _MAKERS.get(alias.name, ())
    }
    packages = {
        alias.asname or "penstock"
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.name.partition(".")[0] == "penstock"
        or (isinstance(node, ast.ImportFrom) and node.module == "penstock")
    }
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in direct:
                return True
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in _MAKERS:
                root = ast.unparse(owner).partition(".")[0]
                if root in packages:
                    return True
            case _:
                continue
    return False


def _nodes(file: Path) -> list[ast.AST] | None:
    try:
        return list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return None


def _is_test(file: Path) -> bool:
    return file.name.startswith("test_") or file.name.endswith("_test.py") or file.name == "conftest.py"
