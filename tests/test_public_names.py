"""The public names: what users may import from `penstock`, and nothing by accident."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeVar, get_origin

import pyspark.sql
import pytest

import penstock
import penstock.abc
import penstock.channels
import penstock.errors
import penstock.lakes
import penstock.queues
import penstock.spark
import penstock.spark.typing
import penstock.tables
import penstock.testing
import penstock.typing
from penstock.spark import patterns
from penstock.tables import apply
from penstock.testing import conformance

REPOSITORY = Path(__file__).resolve().parents[1]

PUBLIC = [
    "Aggregate",
    "App",
    "AvroSerde",
    "CircuitBreaker",
    "ConfigError",
    "Connection",
    "Consumer",
    "Context",
    "DeadLetter",
    "DeadLetterFilter",
    "DeliveryError",
    "EventStore",
    "Guarantee",
    "JsonSerde",
    "MsgpackSerde",
    "NewRecord",
    "Ordering",
    "PenstockError",
    "Position",
    "Producer",
    "Projection",
    "ProtobufSerde",
    "Reader",
    "Receipt",
    "Record",
    "RecordMetadata",
    "Reject",
    "Retry",
    "SchemaRegistry",
    "StreamError",
    "Table",
    "Topic",
    "TopicPattern",
    "applies",
    "connect",
    "open_dead_letters",
    "redrive",
    "sql",
    "upcasts",
    "within",
]


def test_the_public_names_are_these() -> None:
    assert penstock.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_is_there_documented_and_listed(name: str) -> None:
    thing = getattr(penstock, name)
    assert thing.__doc__
    assert thing.__module__.startswith("penstock.")
    assert name in dir(penstock)


def test_errors_have_one_root() -> None:
    errors = [getattr(penstock, name) for name in PUBLIC if name.endswith("Error")]
    assert all(issubclass(error, penstock.PenstockError) for error in errors)


def test_any_other_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Broker'"):
        penstock.Broker  # noqa: B018


def test_an_error_that_is_not_there_is_said_to_be_among_the_errors() -> None:
    with pytest.raises(AttributeError, match="'UnknownTopicError': errors are in"):
        penstock.UnknownTopicError  # noqa: B018
    with pytest.raises(ImportError, match="UnknownTopicError"):
        from penstock import UnknownTopicError  # noqa: F401


def test_importing_the_package_loads_no_room() -> None:
    """The broker's process imports it, too, and has no use for a client."""
    script = "import sys, penstock; print(*[name for name in sys.modules if name.startswith('penstock')])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["penstock"]


INTERNAL = {
    *("App.consumers", "App.declared", "Connection.send_through", "Context.__init__", "MemoryStream.send_through"),
    *("MemoryTopicStream.__init__", "MemoryTopicStream.feed", "TableSnapshot.__init__", "LakeTable.open_format"),
    "App.gatherers",
    *("Pipeline.folder", "Pipeline.queries", "Pipeline.spools", "Pipeline.tracker"),
    *("OpenTable.__init__", "OpenTable.commit", "OutboxTransaction.__init__", "KeyContext.__init__"),
    *("QueryIdentity.__init__", "QueryIdentity.refused"),
    *("Simulation.__init__", "StateList.__init__", "StateMap.__init__", "StateValue.__init__"),
}
"""Members that other rooms use, and programs do not."""


def annotations_of(module: ModuleType, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each annotation of a public signature or field, with the name of what it belongs to."""
    for name in names:
        thing = getattr(module, name)
        functions = {name: thing} if inspect.isfunction(thing) else {}
        if inspect.isclass(thing):
            for member, value in inspect.getmembers(thing):
                function = value.fget if isinstance(value, property) else value
                if inspect.isfunction(function) and (member == "__init__" or not member.startswith("_")):
                    functions[f"{name}.{member}"] = function
            fields = inspect.get_annotations(thing).items()
            yield from (
                (f"{name}.{field}", str(text))
                for field, text in fields
                if not field.startswith("_") and f"{name}.{field}" not in INTERNAL
            )
        for owner, function in functions.items():
            if owner not in INTERNAL and str(function.__module__).startswith("penstock"):
                yield from ((owner, str(text)) for text in inspect.get_annotations(function).values())


def public_names(module: ModuleType) -> list[str]:
    if module is penstock.abc:  # it has no list: everything of ours in it is public
        ours = {name: str(getattr(value, "__module__", "")) for name, value in vars(module).items()}
        return [name for name, home in ours.items() if home.startswith("penstock.") and not name.startswith("_")]
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    return [name for name in names if module is not conformance or name[0].islower()]


@pytest.mark.parametrize(
    "module",
    [
        *(penstock, penstock.abc, penstock.typing, penstock.testing, conformance, penstock.queues, penstock.channels),
        *(penstock.spark, penstock.spark.typing, patterns, penstock.lakes, penstock.tables, apply),
    ],
    ids=lambda module: module.__name__,
)
def test_every_type_that_a_public_signature_mentions_is_public(module: ModuleType) -> None:
    names = public_names(module)
    homes = {*PUBLIC, *vars(penstock.abc), *vars(penstock.errors), *penstock.typing.__all__}
    homes |= set(getattr(module, "__all__", ()))
    if module is conformance:
        homes |= set(penstock.testing.__all__)
    if module is penstock.typing or module.__name__.startswith(penstock.spark.__name__):
        homes |= {*penstock.spark.__all__, *penstock.spark.typing.__all__, *penstock.lakes.__all__}
        homes |= set(pyspark.sql.__all__)
    annotations = list(annotations_of(module, names))  # this imports what is imported when it is used
    ours = {
        name
        for loaded in list(sys.modules.values())
        if loaded.__name__.startswith("penstock.")
        for name, value in vars(loaded).items()
        if (str(getattr(value, "__module__", "")).startswith("penstock.") and not isinstance(value, TypeVar))
        or (get_origin(value) is not None and loaded.__name__.startswith("penstock."))
    }
    hidden = {
        f"{owner}: {name}"
        for owner, text in annotations
        for name in re.findall(r"(?<!\.)\b[A-Z]\w+", text)
        if name in ours and name not in homes and len(name) > 1
    }
    assert hidden == set(), "add them to penstock.typing, or to penstock.spark.typing"


def test_programs_in_the_documentation_import_public_names_only() -> None:
    """A module is public if the reference lists it, and its names are those of its `__all__`."""
    reference = (REPOSITORY / "docs/reference/api.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in reference.splitlines() if line.startswith("| `penstock."))
    modules = {"penstock", *re.findall(r"`(penstock\.[\w.]+)`", table)}
    texts = {
        path: path.read_text(encoding="utf-8") for path in [*REPOSITORY.glob("docs/**/*.md"), REPOSITORY / "README.md"]
    }
    blocks = {
        path: "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
        for path, text in texts.items()
    }
    for folder in ("examples", "src/penstock/cli/starter"):
        blocks |= {path: path.read_text(encoding="utf-8") for path in (REPOSITORY / folder).rglob("*.py")}
    wrong = []
    seen = 0
    for path, code in blocks.items():
        for home, names in re.findall(r"^ *from (penstock[\w.]*) import (\([^)]*\)|.+)$", code, re.MULTILINE):
            for name in re.findall(r"\w+(?: as \w+)?", re.sub("#.*", "", names)):
                seen += 1
                module = importlib.import_module(home) if home in modules else None
                public = module is not None and (name.split()[0] in public_names(module) or f"{home}.{name}" in modules)
                if not public and module is not penstock.errors:
                    wrong.append(f"{path.relative_to(REPOSITORY)}: from {home} import {name}")
    assert wrong == []
    assert seen > 100


def test_times_in_public_signatures_are_seconds_by_name() -> None:
    """`timeout_s`, as everywhere; `Receipt.result` has the name of `concurrent.futures.Future.result`."""
    wrong = {
        f"{name}.{member}"
        for name in PUBLIC
        for member, function in inspect.getmembers(getattr(penstock, name), inspect.isfunction)
        if {"timeout", "seconds", "delay", "interval"} & inspect.signature(function).parameters.keys()
    }
    assert wrong == {"Receipt.result", "Receipt._wait"}
