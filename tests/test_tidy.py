"""The habits of this repository, enforced. Each rule says in its complaint what to do; each is shown to bite, too."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pytest

import penstock
from tests.tidy import habits, shape, words
from tests.tidy.rooms import HEIGHT, ROOMS, only_kafka_imports_kafka, rooms_import_only_from_above
from tests.tidy.settings import settings_nobody_reads
from tests.tidy.source import ROOT, Complaint, Source, python_packages, repository

Rule = Callable[[Source], Iterator[Complaint]]
RuleForAll = Callable[[Iterable[Source]], Iterator[Complaint]]

in_one_worker = pytest.mark.xdist_group("tidy")
"""Each worker would read and parse all files."""
RULES: Final[list[Rule]] = [
    habits.files_are_short,
    habits.rooms_say_what_they_are_for,
    habits.names_say_what_a_thing_is,
    habits.one_stream_is_called_stream,
    habits.only_the_command_line_prints,
    habits.nothing_is_swallowed,
    habits.tests_do_not_sleep_to_synchronise,
    habits.tests_can_fail,
    rooms_import_only_from_above,
    only_kafka_imports_kafka,
    words.nothing_is_left_for_later,
    words.no_path_of_one_machine,
    words.no_package_registry,
]

LOG: Final = "src/penstock/log/x.py"
BROKER: Final = "src/penstock/broker/x.py"
STREAMS: Final = "src/penstock/streams/kafka.py"
TEST: Final = "tests/log/test_x.py"

BREACHES: Final[list[tuple[Rule, str, str]]] = [
    (habits.files_are_short, LOG, "x = 1\n" * 701),
    (habits.rooms_say_what_they_are_for, "src/penstock/log/__init__.py", "from x import y\n"),
    (habits.rooms_say_what_they_are_for, "src/penstock/log/__init__.py", '"""The log."""\n'),
    (habits.names_say_what_a_thing_is, "src/penstock/log/utils.py", ""),
    (habits.names_say_what_a_thing_is, "tests/log/test_helpers.py", ""),
    (habits.names_say_what_a_thing_is, "src/penstock/common/x.py", ""),
    (habits.one_stream_is_called_stream, STREAMS, "def f(streams: str | Stream): ...\n"),
    (habits.one_stream_is_called_stream, STREAMS, "class A:\n    def f(self, *, streams=None): ...\n"),
    (habits.only_the_command_line_prints, LOG, "def f():\n    print('x')\n"),
    (habits.nothing_is_swallowed, LOG, "try: f()\nexcept: raise\n"),
    (habits.nothing_is_swallowed, LOG, "try: f()\nexcept Exception: pass\n"),
    (habits.nothing_is_swallowed, TEST, "try: f()\nexcept (OSError, BaseException) as e:\n    ...\n"),
    (habits.nothing_is_swallowed, LOG, "with contextlib.suppress(Exception): f()\n"),
    (habits.tests_do_not_sleep_to_synchronise, TEST, "def test_x():\n    time.sleep(1)\n    assert x\n"),
    (habits.tests_do_not_sleep_to_synchronise, TEST, "async def until_x():\n    await asyncio.sleep(0.1)\n"),
    (habits.tests_can_fail, TEST, "def test_x(): f()\n"),
    (habits.tests_can_fail, TEST, "def f(): g()\ndef g(): f()\nasync def test_x(): f()\n"),
    (rooms_import_only_from_above, LOG, "from penstock.broker import serve\n"),
    (rooms_import_only_from_above, LOG, "import penstock.broker.groups\n"),
    (rooms_import_only_from_above, LOG, "from penstock import broker\n"),
    (rooms_import_only_from_above, LOG, "def f():\n    from ..consuming import loop\n"),
    (rooms_import_only_from_above, LOG, "from penstock import connect\n"),
    (rooms_import_only_from_above, LOG, "import penstock\n"),
    (rooms_import_only_from_above, STREAMS, "from penstock.broker.groups import Group\n"),
    (rooms_import_only_from_above, STREAMS, "from penstock.queues import amqp\n"),
    (rooms_import_only_from_above, STREAMS, "from penstock.log._scan import scan\n"),
    (rooms_import_only_from_above, "src/penstock/model.py", "from penstock.log import Reader\n"),
    (rooms_import_only_from_above, "src/penstock/attic.py", ""),
    (
        only_kafka_imports_kafka,
        "src/penstock/console/x.py",
        "from penstock.streams.kafka.stream import KafkaStream\n",
    ),
    (only_kafka_imports_kafka, "src/penstock/streams/x.py", "def f():\n    import penstock.streams.kafka.stream\n"),
    (only_kafka_imports_kafka, "src/penstock/streams/memory/x.py", "from ..kafka.reading import KafkaReader\n"),
    (words.nothing_is_left_for_later, "docs/x.md", "TO" + "DO: write this\n"),
    (words.no_path_of_one_machine, "Makefile", "x: '/ro" + "ot/x'\n"),
    (words.no_package_registry, "tools/x.toml", "index = 'https://mirror.example/pypi/" + "simple'\n"),
]

KEPT: Final[list[tuple[Rule, str, str]]] = [
    (habits.files_are_short, LOG, "x = 1\n" * 700),
    (habits.names_say_what_a_thing_is, "src/penstock/log/commonality.py", ""),
    (habits.one_stream_is_called_stream, STREAMS, "def f(stream: Stream, streams: Sequence[Stream]): ...\n"),
    (habits.only_the_command_line_prints, "src/penstock/cli/commands/serve.py", "print('x')\n"),
    (habits.nothing_is_swallowed, LOG, "try: f()\nexcept FileNotFoundError: pass\n"),
    (habits.nothing_is_swallowed, LOG, "try: f()\nexcept Exception:\n    log.exception('f')\n"),
    (habits.tests_do_not_sleep_to_synchronise, LOG, "time.sleep(1)\n"),
    (habits.tests_do_not_sleep_to_synchronise, TEST, "async def test_x(): await asyncio.sleep(0)\n"),
    (habits.tests_do_not_sleep_to_synchronise, TEST, "def wait_for(x, timeout_s):\n    time.sleep(0.01)\n"),
    (habits.tests_can_fail, TEST, "def test_x():\n    with pytest.raises(ValueError): f()\n"),
    (habits.tests_can_fail, TEST, "def test_x(): step_until('done', x)\n"),
    (habits.tests_can_fail, TEST, "def test_x(page): expect(page).to_have_url('x')\n"),
    (habits.tests_can_fail, TEST, "def h(): g()\ndef g(): assert x\ndef test_x(): h()\n"),
    (
        only_kafka_imports_kafka,
        "src/penstock/checkpoints/kafka/x.py",
        "from penstock.streams.kafka.stream import X\n",
    ),
    (only_kafka_imports_kafka, "src/penstock/console/x.py", "from penstock.streams.connection import Connection\n"),
    (rooms_import_only_from_above, BROKER, "from penstock.log.batches.batch import Batch\nfrom .groups import Group\n"),
    (rooms_import_only_from_above, STREAMS, "from penstock import __version__, errors, log\n"),
    (rooms_import_only_from_above, STREAMS, "import penstock.broker\nfrom penstock.errors import StorageError\n"),
    (rooms_import_only_from_above, "src/penstock/testing/memory.py", "from penstock.broker.groups import Group\n"),
    (rooms_import_only_from_above, "src/penstock/cli/commands/serve.py", "from penstock.broker.server import serve\n"),
    (rooms_import_only_from_above, "src/penstock/__init__.py", "from penstock.app import App\n"),
    (words.no_path_of_one_machine, "docs/x.md", "`src/work/x`, `$HOME/root/x`, https://example.org/home/x\n"),
    (words.no_package_registry, "docs/x.md", "https://kafka.apache.org/documentation/\n"),
]


@in_one_worker
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_repository_keeps_its_habits(rule: Rule) -> None:
    complaints = [complaint for source in repository() for complaint in rule(source)]
    assert not complaints, f"{rule.__doc__}\n" + "\n".join(map(str, complaints))


@pytest.mark.parametrize(("rule", "path", "text"), BREACHES)
def test_a_broken_habit_is_noticed(rule: Rule, path: str, text: str) -> None:
    complaints = list(rule(Source(path, text)))
    assert complaints
    assert all(complaint.path == path and complaint.text for complaint in complaints)


@pytest.mark.parametrize(("rule", "path", "text"), KEPT)
def test_a_kept_habit_is_not_complained_about(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(Source(path, text)))


def test_every_rule_is_shown_to_bite() -> None:
    assert {rule for rule, _, _ in BREACHES} == set(RULES)


@in_one_worker
def test_every_room_is_a_package_of_its_own() -> None:
    without = [str(folder.relative_to(ROOT)) for folder in python_packages() if not (folder / "__init__.py").exists()]
    assert not without, f"add an __init__.py that says what the room is for: {without}"


@in_one_worker
def test_every_module_of_the_package_can_be_found_by_its_room() -> None:
    """The rules see nothing when the sources are not where they look."""
    assert {"", "errors", "log", "broker"} <= {source.room for source in repository()}


SHAPES: Final[list[RuleForAll]] = [
    shape.folders_are_small,
    shape.class_names_are_unique_in_a_room,
    shape.no_module_is_a_fragment,
    shape.imports_have_no_cycle,
    shape.imports_are_at_the_top,
]
MISSHAPEN: Final[list[tuple[RuleForAll, dict[str, str]]]] = [
    (shape.folders_are_small, {f"src/penstock/log/m{number}.py": "" for number in range(23)}),
    (
        shape.class_names_are_unique_in_a_room,
        {"src/penstock/log/a.py": "class Ledger: ...\n", "src/penstock/log/b/c.py": "class Ledger: ...\n"},
    ),
    (
        shape.no_module_is_a_fragment,
        {"src/penstock/log/a.py": "x = 1\n", "src/penstock/log/b.py": "from penstock.log.a import x\n"},
    ),
    (
        shape.imports_have_no_cycle,
        {"src/penstock/log/a.py": "import penstock.log.b\n", "src/penstock/log/b.py": "import penstock.log.a\n"},
    ),
    (
        shape.imports_are_at_the_top,
        {"src/penstock/log/a.py": "import numpy\ndef f():\n    import json, numpy.linalg\n"},
    ),
]
WELL_SHAPED: Final[dict[str, str]] = {
    "src/penstock/log/__init__.py": "from penstock.log.offered import x\n",
    "src/penstock/log/offered.py": "x = 1\nclass _Private: ...\nclass Store: ...\n",
    "src/penstock/log/a.py": "import numpy\nimport penstock.log.shared\nclass _Private: ...\n",
    "src/penstock/log/b.py": "from penstock.log.shared import y\nfrom penstock.log import a\n",
    "src/penstock/log/c.py": "import penstock.log.b\n",
    "src/penstock/log/shared.py": "def y():\n    from penstock.log.a import x\n    from penstock.log.b import z\n",
    "src/penstock/broker/a.py": "class Store: ...\n",
}


@in_one_worker
@pytest.mark.parametrize("rule", SHAPES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_its_shape(rule: RuleForAll) -> None:
    complaints = list(rule(repository()))
    assert not complaints, f"{rule.__doc__}\n" + "\n".join(map(str, complaints))


@pytest.mark.parametrize(("rule", "files"), MISSHAPEN)
def test_a_wrong_shape_is_noticed(rule: RuleForAll, files: dict[str, str]) -> None:
    assert list(rule([Source(path, text) for path, text in files.items()]))


@pytest.mark.parametrize("rule", SHAPES, ids=lambda rule: rule.__name__)
def test_a_right_shape_is_not_complained_about(rule: RuleForAll) -> None:
    assert not list(rule([Source(path, text) for path, text in WELL_SHAPED.items()]))


def test_every_shape_is_shown_to_be_noticed() -> None:
    assert [rule for rule, _ in MISSHAPEN] == SHAPES


def test_the_page_for_contributors_lists_the_rooms_in_their_order() -> None:
    page = (ROOT / "docs/contributing.md").read_text()
    table = page.partition("## The rooms")[2].partition("\n## ")[0]
    listed = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
    assert [set(rooms) for rooms in listed[1:]] == [set(rooms) for rooms in ROOMS]
    assert set(listed[0]) == {"model", "errors", "abc"}


def test_the_page_on_the_architecture_names_files_that_are_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py)?)`", page)
    files = [name for name in named if name.endswith(".py")]
    folders = [name for name in named if not name.endswith(".py") and ("/" in name or name in HEIGHT)]
    assert len(files) > 40
    assert len(folders) > 10
    missing = [name for name in files + folders if not (ROOT / "src/penstock" / name).exists()]
    assert not missing, f"docs/architecture.md names what is not there: {missing}"
    rooms = {name.partition("/")[0].removesuffix(".py") for name in named}
    assert set(HEIGHT) <= rooms, "a stranger does not learn what to touch in these rooms"
    picture = re.findall(r">(\w+)</text>", (ROOT / "docs/images/rooms.svg").read_text())
    heights = [HEIGHT[name] for name in picture if name in HEIGHT]
    assert heights == sorted(heights), "the picture has the rooms in their order"
    assert set(HEIGHT) <= set(picture)


@in_one_worker
def test_every_setting_is_obeyed_somewhere() -> None:
    unread = list(settings_nobody_reads(repository()))
    assert not unread, "\n".join(map(str, unread))


def test_a_setting_that_nobody_reads_is_noticed() -> None:
    settings = Source(
        "src/penstock/log/settings.py",
        "class Limits:\n    used: int = 1\n    through_a_property: int = 2\n    ignored: int = 3\n"
        "    @property\n    def shown(self): return self.through_a_property\n"
        "    def __post_init__(self): assert self.ignored > 0\n",
    )
    reader = Source("src/penstock/log/x.py", "def f(limits): return limits.used\n")
    assert [complaint.line for complaint in settings_nobody_reads([settings, reader])] == [4]


def test_the_public_names_are_sorted_and_exist() -> None:
    public: list[str] = list(getattr(penstock, "__all__", []))
    assert public == sorted(public), "keep penstock.__all__ sorted, so that two branches add to it without conflict"
    package = importlib.import_module("penstock")
    missing = [name for name in public if not hasattr(package, name)]
    assert not missing, f"penstock.__all__ promises what is not there: {missing}"
