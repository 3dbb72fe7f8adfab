"""The shape of the package: small folders, names that are unique in their room, no fragments, no import cycles."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from tests.tidy.source import Complaint, Source

MOST_FILES: Final = 22
"""How many modules a folder may hold before it must be divided."""
LISTS: Final = frozenset({"src/penstock/cli/commands"})
"""Folders with one module for each entry of a list, as `penstock --help` shows it: they are as long as the list."""
FRAGMENT_LINES: Final = 60
"""A shorter module that only one other imports belongs in that other."""
ALONE: Final = frozenset({"src/penstock/checkpoints/memory.py", "src/penstock/dead_letters/sqlite.py"})
"""Short modules with a reason: stores that users import."""

EXTRAS: Final = frozenset(
    {
        *(
            "boto3",
            "botocore",
            "deltalake",
            "duckdb",
            "fastavro",
            "google",
            "nats",
            "nicegui",
            "numba",
            "numpy",
            "openlineage",
            "opentelemetry",
        ),
        *("pandas", "pika", "psycopg", "psycopg_pool", "py4j", "pyarrow", "pydantic", "pyiceberg", "pymysql"),
        *("pyspark", "redis"),
    }
)
"""The packages that extras of pyproject.toml bring (`google` is protobuf): all that may be missing."""

IMPORTED_LATE: Final = frozenset({("penstock.app", "penstock.observe.metrics.serving")})
"""Imports inside a function although no extra is needed. Metrics bring Prometheus and librdkafka, a quarter of the time
that importing `App` takes; most apps serve no metrics, and some commands import `App` only to inspect it."""

Sources = Iterable[Source]


def folders_are_small(sources: Sources) -> Iterator[Complaint]:
    """A folder shows its architecture at a glance."""
    folders = Counter(source.path.rpartition("/")[0] for source in sources if source.room is not None)
    for folder, count in folders.items():
        if count > MOST_FILES and folder not in LISTS:
            yield Complaint(folder, 1, f"{count} modules, more than {MOST_FILES}: group those that belong together")


def class_names_are_unique_in_a_room(sources: Sources) -> Iterator[Complaint]:
    """A name means one thing in a room."""
    homes: defaultdict[tuple[str, str], list[tuple[Source, ast.ClassDef]]] = defaultdict(list)
    for source in sources:
        if source.room:
            for node in source.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[source.room, node.name].append((source, node))
    for (_, name), found in homes.items():
        for source, node in found[1:]:
            yield source.complain(node, f"{found[0][0].path} has a class `{name}`, too: name one of them after its use")


def no_module_is_a_fragment(sources: Sources) -> Iterator[Complaint]:
    """A short module that only one other imports is a part of that other."""
    modules = {_module(source): source for source in sources if source.room is not None}
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name, source in modules.items():
        for target in _imports(source, modules):
            if target != name:
                importers[target].add(name)
    for name, source in modules.items():
        by = importers[name]
        if len(by) != 1 or source.path in ALONE or source.path.endswith(("__init__.py", "__main__.py")):
            continue
        [importer] = by
        is_offered = modules[importer].path.endswith("__init__.py")  # the room's `__init__` makes its names public
        if source.text.count("\n") < FRAGMENT_LINES and not is_offered:
            yield source.complain(1, f"only {modules[importer].path} imports this: put it there")


def imports_have_no_cycle(sources: Sources) -> Iterator[Complaint]:
    """Modules can be read in an order in which each needs only what was read before."""
    modules = {_module(source): source for source in sources if source.room is not None}
    needs = {name: set(_imports(source, modules, at_import_time=True)) - {name} for name, source in modules.items()}
    done: set[str] = set()
    while ready := {name for name, imported in needs.items() if name not in done and imported <= done}:
        done |= ready
    rest = {name: imported - done for name, imported in needs.items() if name not in done}
    while leaves := {name for name in rest if not any(name in imported for imported in rest.values())}:
        rest = {name: imported for name, imported in rest.items() if name not in leaves}
    for name, imported in sorted(rest.items()):
        yield modules[name].complain(1, f"is in a cycle of imports with {', '.join(sorted(imported & rest.keys()))}")


def imports_are_at_the_top(sources: Sources) -> Iterator[Complaint]:
    """A function imports only what needs an extra that its own module does without, or what `IMPORTED_LATE` lists."""
    modules = {_module(source): source for source in sources if source.room is not None}
    extras = _extras_by_module(modules)
    for name, source in modules.items():
        for node in _inside_functions(source.tree):
            if any((name, target) in IMPORTED_LATE for target in _targets(node, modules)):
                continue
            brought = set().union(*(extras[target] for target in _targets(node, modules)), _packages(node) & EXTRAS)
            if isinstance(node, ast.Import | ast.ImportFrom) and brought <= extras[name]:
                yield source.complain(node, "import it at the top: no extra that this module does without is needed")


def _extras_by_module(modules: dict[str, Source]) -> dict[str, set[str]]:
    """The packages of extras that each module needs when it is imported, by itself or by what it imports."""
    needs: dict[str, set[str]] = {}
    imports: dict[str, set[str]] = {}
    for name, source in modules.items():
        optional = _not_run_on_import(source.tree) | _guarded(source.tree)
        nodes = [node for node in ast.walk(source.tree) if node not in optional]
        needs[name] = set().union(*(_packages(node) for node in nodes)) & EXTRAS
        imports[name] = {target for node in nodes for target in _targets(node, modules)}
        imports[name] |= {name.rsplit(".", above)[0] for above in range(1, name.count(".") + 1)} & modules.keys()
    while True:  # ends: the sets only grow
        grown = {name: needs[name].union(*(needs[target] for target in imports[name])) for name in modules}
        if grown == needs:
            return needs
        needs = grown


def _guarded(tree: ast.Module) -> set[ast.AST]:
    """Imports in a `try` whose handlers do without what is missing, instead of raising an error."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and not any(isinstance(each, ast.Raise) for each in _nodes(node.handlers)):
            found |= set(_nodes(node.body))
    return found


def _nodes(trees: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for tree in trees:
        yield from ast.walk(tree)


def _inside_functions(tree: ast.Module) -> set[ast.AST]:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return set(_nodes(functions))


def _packages(node: ast.AST) -> set[str]:
    """The top-level packages that an import names."""
    if isinstance(node, ast.Import):
        return {name.name.partition(".")[0] for name in node.names}
    return {node.module.partition(".")[0]} if isinstance(node, ast.ImportFrom) and node.module else set()


def _module(source: Source) -> str:
    return ".".join(source.parts[1:]).removesuffix(".py").removesuffix(".__init__")


def _imports(source: Source, modules: dict[str, Source], *, at_import_time: bool = False) -> Iterator[str]:
    skipped = _not_run_on_import(source.tree) if at_import_time else set()
    for node in ast.walk(source.tree):
        if node not in skipped:
            yield from _targets(node, modules)


def _targets(node: ast.AST, modules: dict[str, Source]) -> Iterator[str]:
    """The modules of the package that an import names."""
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names if name.name in modules)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        inner = {f"{node.module}.{name.name}" for name in node.names}
        yield from inner & modules.keys()
        if inner - modules.keys() and node.module in modules:
            yield node.module


def _not_run_on_import(tree: ast.Module) -> set[ast.AST]:
    """Everything inside of functions, and what only type checkers read."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        is_typing = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        if is_typing or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.update(ast.walk(node))
    return found
