"""The files of a program: itself, and the modules and packages beside it that it imports, directly or not.

Imports are found in the source, including those inside functions. Modules imported by other means, such as importlib,
are found among the loaded modules of this process. Installed packages are not part of the program.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock import errors
from penstock.errors import ConfigError

PACKAGE: Final = Path(errors.__file__).resolve().parent
"""The folder of Penstock itself."""
MOST_FILES: Final = 2_000
"""More files than this are probably not a program, but a folder with other content."""


def program_files(program: Path) -> Iterator[tuple[str, Path]]:
    """Each file with its name in an archive for `sys.path`. The program has its own name."""
    program = program.absolute()
    root = program.parent
    found: dict[str, Path] = {program.name: program}
    waiting = [program, *_imported_otherwise(root)]
    seen = set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for each in (file, *_imported_by(file, root)):
            for name, part in _with_its_package(each, root):
                if name not in found:
                    found[name] = part
                    if part.suffix == ".py":
                        waiting.append(part)
        if len(found) > MOST_FILES:
            raise ConfigError(
                f"{program} imports packages beside it with more than {MOST_FILES} files: install them on the "
                "executors, or move the program to its own folder"
            )
    yield from sorted(found.items())


def _with_its_package(file: Path, root: Path) -> Iterator[tuple[str, Path]]:
    """The file of a module; for a module in a package, the whole package with its data."""
    parts = file.relative_to(root).parts
    if len(parts) == 1:
        yield parts[0], file
        return
    package = root / parts[0]
    for each in sorted(package.rglob("*")):
        inside = each.relative_to(root)
        hidden = any(part == "__pycache__" or part.startswith(".") for part in inside.parts)
        if not hidden and each.is_file() and not _is_installed(each):
            yield inside.as_posix(), each


def _imported_by(file: Path, root: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError:  # reported when it is imported, if it ever is
        return
    package = file.relative_to(root).parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [name.name.split(".") for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            names = [module] if module else [[name.name] for name in node.names]
        else:
            continue
        for name in names:
            if name and (there := _beside(name[0], root)) is not None:
                yield there


def _beside(name: str, root: Path) -> Path | None:
    """The module or package of this name in the program's folder."""
    for candidate in (root / name / "__init__.py", root / f"{name}.py"):
        if candidate.is_file() and not _is_installed(candidate):
            return candidate
    # A namespace package has no __init__.
    return next((file for file in sorted((root / name).rglob("*.py")) if not _is_installed(file)), None)


def _imported_otherwise(root: Path) -> Iterator[Path]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        name = getattr(module, "__name__", "")
        if not isinstance(file, str) or name == "__main__" or not file.endswith(".py"):
            continue
        path = Path(file).absolute()
        if path.is_relative_to(root) and not _is_installed(path) and _is_named_by_place(path, root, name):
            yield path


def _is_named_by_place(path: Path, root: Path, name: str) -> bool:
    """Whether it was imported from the program's folder, not from a folder below it that is also on `sys.path`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) == name


def _is_installed(path: Path) -> bool:
    """Whether it belongs to a Python environment, even one in the program's folder."""
    if "site-packages" in path.parts or "dist-packages" in path.parts:
        return True
    folders = {sys.prefix, sysconfig.get_path("stdlib"), str(PACKAGE)}
    return any(path.is_relative_to(folder) for folder in folders)
