"""The order of the rooms: data walks down this list and never back up.

A module imports only from rooms above its own, and from `model`, `errors` and `abc`. This is what keeps the log usable
without the broker, the broker without the consumer, and every room understandable from what stands above it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.tidy.source import Complaint, Source

GROUND: Final = frozenset({"model", "errors", "abc"})
"""What every room may import. Among themselves they import each other only."""

ROOMS: Final = (
    {"java"},
    {"serde"},
    {"databases"},
    {"log"},
    {"broker"},
    {"streams"},
    {"queues", "channels"},
    {"producing"},
    {"checkpoints"},
    {"dead_letters"},
    {"consuming"},
    {"tables"},
    {"querying"},
    {"lakes"},
    {"spark"},
    {"observe"},
    {"app"},
    {"gateway"},
    {"prove"},
    {"cluster"},
    {"console"},
    {"supervising"},
    {"cli"},
    {"demo"},
    {"testing"},
)
HEIGHT: Final = {room: height for height, rooms in enumerate(ROOMS) for room in rooms}

CLOSED: Final = frozenset({"broker"})
"""Rooms whose modules are nobody else's business: the broker is a process of its own, reached over the wire. What
others may use of it, its `__init__` re-exports. The command that runs it, and `testing`, may look inside."""


STARTED: Final = frozenset({("src/penstock/cli/commands/demo.py", "demo")})
"""A module that starts what stands below it: the demo runs commands, and is itself a command."""


def rooms_import_only_from_above(source: Source) -> Iterator[Complaint]:
    """Imports follow the order of the rooms."""
    room = source.room
    if not room or room == "typing":  # not a module of the package, or one that gathers public names
        return
    if room not in HEIGHT and room not in GROUND:
        yield source.complain(1, f"`{room}` is no room of the design: put the module into one, or add it to {__name__}")
        return
    for node, target in imported_modules(source):
        complaint = _objection(room, target)
        if complaint and (source.path, *target[:1]) not in STARTED:
            yield source.complain(node, complaint)


def _objection(room: str, target: tuple[str, ...]) -> str | None:
    """What is wrong with a module of `room` importing `target`, the module's path below `penstock`."""
    if not target and room == "testing":
        return None
    if not target:
        return "import from the room that defines the name: the package itself imports every room, so this is a circle"
    there, *inner = target
    if there == room or there in GROUND or there == "__version__":
        return None
    if room in GROUND:
        return f"`{room}` is ground that every room stands on, so it imports no room; it imports `{there}`"
    if there not in HEIGHT:
        return f"`penstock.{there}` is no room: import the name from the room that defines it"
    if room == "testing":
        return None
    if HEIGHT[there] >= HEIGHT[room]:
        return f"`{room}` imports `{there}`, which does not stand above it: move what both need up, or pass it in"
    if there in CLOSED and inner and room != "cli":
        return f"`penstock.{'.'.join(target)}` is internal to `{there}`: use what `penstock.{there}` re-exports"
    if any(name.startswith("_") for name in inner):
        return f"`penstock.{'.'.join(target)}` is private to `{there}`"
    return None


def imported_modules(source: Source) -> Iterator[tuple[ast.AST, tuple[str, ...]]]:
    """Every import of our own package in a file, as the path of the imported module below `penstock`.

    `from penstock import log` names the room `log`; `from penstock import Record` names the package itself: ().
    """
    package = ("penstock", *source.parts[2:-1])
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            modules = [tuple(name.name.split(".")) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            rooms = {name.name for name in node.names} if module == ("penstock",) else set()
            known = rooms & (set(HEIGHT) | GROUND | {"__version__"})
            modules = [("penstock", name) for name in sorted(known)]
            if not rooms or rooms - known:
                modules.append(module)
        else:
            continue
        for path in modules:
            if path[0] == "penstock":
                yield node, path[1:]


KAFKA: Final = ("streams", "kafka")
KAFKA_BY_NAME: Final = (
    "src/penstock/streams/kafka/",
    "src/penstock/streams/embedded/",
    "src/penstock/checkpoints/kafka/",
    "src/penstock/producing/kafka/",
    "src/penstock/spark/sink/direct.py",
    "src/penstock/spark/sink/publishing.py",
    "src/penstock/spark/sink/task_transactions.py",
    "src/penstock/spark/sink/rows.py",
    "src/penstock/spark/sink/topic.py",
    "src/penstock/spark/sink/topic_delivery.py",
    "src/penstock/spark/source/held_brokers.py",
    "src/penstock/cli/checks/network.py",
)
"""What is Kafka by name: its backend and the embedded log, which speaks its protocol; checkpoints and producers on it;
Spark's sink, which writes to topics of Kafka by its transactions; the doctor's questions to brokers."""


def only_kafka_imports_kafka(source: Source) -> Iterator[Complaint]:
    """The rest of the library works on any stream, by `penstock.abc` and `penstock.streams.Connection`."""
    if not source.room or source.path.startswith(KAFKA_BY_NAME):
        return
    for node, target in imported_modules(source):
        if target[:2] == KAFKA:
            yield source.complain(
                node,
                "`penstock.streams.kafka` is one backend among others: ask the stream by a protocol of `penstock.abc` "
                "(`penstock.streams.capability`), or put what is Kafka's own into a module that is Kafka by name",
            )
