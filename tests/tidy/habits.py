"""Habits that can be seen in one Python file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.tidy.source import Complaint, Source

LONGEST_FILE_LINES: Final = 700
SHORTEST_ROOM_DOCSTRING: Final = 60
VAGUE_NAMES: Final = frozenset({"util", "utils", "helper", "helpers", "manager", "managers", "common", "misc"})
ASSERTING_NAME: Final = re.compile(r"(assert|check|expect)_|(not_)?to_(be|have|contain)_")
"""Such a function fails when what it names is not so. The second kind is playwright's: `expect(x).to_be_visible()`."""
WAITING_NAME: Final = re.compile(r"(.*_)?(wait|until|eventually|poll)(_|$)")
"""A function of such a name waits for something to become true, with a bound, and fails when it does not."""
EVERYTHING: Final = frozenset({"Exception", "BaseException"})


def files_are_short(source: Source) -> Iterator[Complaint]:
    """A file is a thought."""
    length = source.text.count("\n")
    if source.is_python and length > LONGEST_FILE_LINES:
        yield source.complain(
            LONGEST_FILE_LINES + 1,
            f"{length} lines, more than {LONGEST_FILE_LINES}: a file has one subject; give the second one its own file",
        )


def rooms_say_what_they_are_for(source: Source) -> Iterator[Complaint]:
    """The docstring of a room's `__init__` is its door plate."""
    if source.room is None or source.parts[-1] != "__init__.py":
        return
    if len(ast.get_docstring(source.tree) or "") < SHORTEST_ROOM_DOCSTRING:
        yield source.complain(1, "say in a docstring what this room is for, what comes in and what goes out")


def names_say_what_a_thing_is(source: Source) -> Iterator[Complaint]:
    """A module called utils is about nothing, so everything ends up in it."""
    if not source.is_python:
        return
    for part in source.parts:
        for word in re.split(r"[_.]", part):
            if word in VAGUE_NAMES:
                yield source.complain(1, f"`{part}`: `{word}` says nothing; name the module for its subject")


def one_stream_is_called_stream(source: Source) -> Iterator[Complaint]:
    """`Producer(stream=...)` beside `Consumer(stream=...)`: who has used one can guess the other."""
    if source.room is None:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.arg) and node.arg == "streams" and "[" not in ast.unparse(node.annotation or node):
            yield source.complain(node, "the parameter `streams` takes one stream: call it `stream`")


def only_the_command_line_prints(source: Source) -> Iterator[Complaint]:
    """A library that prints cannot be used by a program that owns its output."""
    if source.room in (None, "cli"):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield source.complain(node, "print() outside cli/: return the text, or log it")


def nothing_is_swallowed(source: Source) -> Iterator[Complaint]:
    """An error that nobody hears of is found at night, by somebody else."""
    if not source.is_python:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield source.complain(node, "bare `except:` also catches KeyboardInterrupt: name what you expect")
            elif _names(node.type) & EVERYTHING and all(_does_nothing(statement) for statement in node.body):
                yield source.complain(node, "this swallows every error: catch the one you expect, or log and re-raise")
        elif _suppresses_everything(node):
            yield source.complain(node, "suppress() of every error: name the one you expect")


def tests_do_not_sleep_to_synchronise(source: Source) -> Iterator[Complaint]:
    """A sleep is too short on a busy machine and too long on every other."""
    if not source.is_test:
        return
    for function, node in _calls_by_function(source.tree):
        is_sleep = ast.unparse(node.func) in ("time.sleep", "asyncio.sleep", "sleep")
        # sleep(0) synchronises nothing: it lets the other tasks of the loop run.
        if is_sleep and not _is_zero(node.args) and not (function is not None and _polls_with_a_bound(function)):
            yield source.complain(
                node,
                "sleeps: wait for the event itself, or poll in a function wait_…, until_…, eventually_… or poll_… that"
                " takes a timeout or deadline and fails when it passes",
            )


def tests_can_fail(source: Source) -> Iterator[Complaint]:
    """A test without an assertion passes whatever the code does."""
    if not source.is_test:
        return
    functions = [node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    asserting = {function.name for function in functions if _asserts(function, set())}
    while True:  # ends: `asserting` only grows, and is at most all functions of the file
        reaching = {function.name for function in functions if _asserts(function, asserting)}
        if reaching <= asserting:
            break
        asserting |= reaching
    for function in functions:
        if function.name.startswith("test_") and function.name not in asserting:
            yield source.complain(
                function,
                f"{function.name} asserts nothing, so it cannot fail: use assert, pytest.raises, or call a function"
                " named assert_…, check_… or expect_…, or one that waits with a bound: wait_…, …_until, eventually",
            )


def _asserts(function: ast.AST, asserting: set[str]) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = _last_name(node.func)
            if ASSERTING_NAME.match(name) or WAITING_NAME.match(name) or name in asserting:
                return True
            if ast.unparse(node.func) in ("pytest.raises", "pytest.warns", "pytest.fail", "run_state_machine_as_test"):
                return True
    return False


def _polls_with_a_bound(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    bounded = any(re.search("timeout|deadline|attempts", argument.arg) for argument in arguments)
    return WAITING_NAME.match(function.name) is not None and bounded


def _calls_by_function(
    tree: ast.AST, function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef | None, ast.Call]]:
    """Every call in the file, with the innermost function it stands in."""
    for node in ast.iter_child_nodes(tree):
        inside = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.Call):
            yield inside, node
        yield from _calls_by_function(node, inside)


def _suppresses_everything(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or _last_name(node.func) != "suppress":
        return False
    return any(_names(argument) & EVERYTHING for argument in node.args)


def _is_zero(arguments: list[ast.expr]) -> bool:
    return len(arguments) == 1 and isinstance(arguments[0], ast.Constant) and arguments[0].value == 0


def _does_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass | ast.Continue) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _names(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""
