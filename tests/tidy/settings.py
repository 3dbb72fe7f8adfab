"""A setting that nobody reads is an option that is accepted and ignored: worse than one that is refused."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from tests.tidy.source import Complaint, Source

FILES: Final = ("settings.py", "config.py", "limits.py")
"""Where classes of settings stand, in any room."""


def settings_nobody_reads(sources: Iterable[Source]) -> Iterator[Complaint]:
    """Fields of settings classes that nothing reads: no other file, and no property of the class itself."""
    package = [source for source in sources if source.room is not None]
    read_in: dict[str, set[str]] = {}
    for source in package:
        for name in _names_read(source):
            read_in.setdefault(name, set()).add(source.path)
    for source in package:
        if source.path.endswith(FILES):
            for field in _fields(source.tree):
                assert isinstance(field.target, ast.Name)
                if not read_in.get(field.target.id):
                    yield source.complain(field, f"nothing reads `{field.target.id}`: obey it, or refuse it by name")


def _names_read(source: Source) -> Iterator[str]:
    roots: list[ast.AST] = [source.tree]
    if source.path.endswith(FILES):  # checking a value is not obeying it, but a property passes it on
        roots = [node for node in ast.walk(source.tree) if _is_property(node)]
    for root in roots:
        for node in ast.walk(root):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                yield node.attr


def _fields(tree: ast.Module) -> Iterator[ast.AnnAssign]:
    for definition in tree.body:
        if isinstance(definition, ast.ClassDef) and _is_settings_class(definition):
            for node in definition.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    yield node


def _is_settings_class(definition: ast.ClassDef) -> bool:
    return definition.name.endswith(("Settings", "Config", "Limits"))


def _is_property(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(ast.unparse(each) == "property" for each in node.decorator_list)
