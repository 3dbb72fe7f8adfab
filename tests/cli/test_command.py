"""The command as a whole: help, versions, exit codes, and how errors are told."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from penstock import __version__
from penstock.cli.main import COMMANDS, app
from penstock.streams.embedded.finding import is_owned
from tests.cli.running import COMMAND, Command
from tests.servers import Penstock
from tests.streams.embedded import stop_broker

NOUNS = ["demo", "init", "doctor", "serve", "console", "topics", "produce", "consume", "groups", "lag", "dlq", "alerts"]
OF_NO_STREAM = {
    ("demo",),
    ("init",),
    ("serve",),
    ("run",),
    ("up",),
    ("plan",),
    ("asyncapi",),
    ("gateway",),
    ("cdc", "apply"),
    ("cdc", "compare"),
    ("cdc", "forget"),
    ("cdc", "run"),
    ("cdc", "snapshot"),
    ("cdc", "status"),
    ("outbox", "relay"),
    ("outbox", "status"),
    ("spark", "jars"),
    ("spark", "archive"),
    ("prove", "outage"),
    *(("webhooks", verb) for verb in ("register", "list", "show", "remove", "enable", "rotate")),
    *(("cluster", verb) for verb in ("up", "down", "status", "kill", "stop", "start", "isolate", "heal", "drill")),
}


@pytest.fixture
def run(server: Penstock) -> Command:
    """Started as its users start it: what the other tests of this folder need not do each time."""
    return Command(f"kafka://{server.bootstrap}")


def verbs_of(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Everything that can be asked of it, as it is typed."""
    for name, below in command.commands.items():
        yield from verbs_of(below, (*words, name)) if hasattr(below, "commands") else [(*words, name)]


def test_the_help_lists_the_commands_in_the_order_in_which_one_meets_them(run: Command) -> None:
    shown = run.well("--help").out
    places = [shown.index(f"\n  {noun} ") for noun in NOUNS]
    assert places == sorted(places)
    assert "Exit codes: 0 done" in " ".join(shown.split())
    assert "kafka://127.0.0.1:9092" in shown


@pytest.mark.parametrize("words", list(verbs_of(typer.main.get_command(app))), ids=" ".join)
def test_every_command_explains_itself_with_examples(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*words, "--help"], prog_name="penstock")
    assert done.exit_code == 0
    assert done.output.startswith(f"Usage: penstock {' '.join(words)}")
    assert f"penstock {' '.join(words)}" in done.output.partition("\n  Examples:\n")[2]
    assert ("--url URL" in done.output) is (words not in OF_NO_STREAM)


def test_every_argument_and_option_says_what_it_is() -> None:
    def speechless(command: Any, words: str) -> Iterator[str]:
        for name, below in getattr(command, "commands", {}).items():
            yield from speechless(below, f"{words} {name}")
        yield from (f"{words} {each.name}" for each in command.params if not getattr(each, "help", None))

    assert list(speechless(typer.main.get_command(app), "penstock")) == []


def test_the_help_loads_nothing_that_it_does_not_need() -> None:
    """What makes it quick, said in a way that does not depend on the machine."""
    script = "import sys; from penstock.cli.main import app; app(standalone_mode=False); print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "penstock.cli.main" in loaded
    for heavy in ("confluent_kafka", "rich.console", "kio", "penstock.streams", "penstock.broker"):
        assert heavy not in loaded
    assert not [name for name in loaded if name.startswith("penstock.cli.commands.")]


def test_the_help_says_of_a_command_what_the_command_says_of_itself() -> None:
    for name, line in COMMANDS.items():
        said = set(re.findall(r"\w+", typer.main.get_command(app).commands[name].help))  # type: ignore[attr-defined]
        assert set(re.findall(r"\w+", line)) <= said, name


def test_a_shell_completes_commands_without_loading_them() -> None:
    environment = {**os.environ, "_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": "penstock t", "COMP_CWORD": "1"}
    script = (
        "import sys; from penstock.cli import main; sys.argv[0] = 'penstock'\ntry: main()\nfinally: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("topics\n")
    assert "penstock.cli.commands" not in done.stdout


def test_the_version_is_told(run: Command) -> None:
    assert run.well("--version").out == f"penstock {__version__}\n"
    assert run.well("-V").out == f"penstock {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["topics", "no-such-verb"], ["consume"], ["consume", "x", "--no-such-option"]]
)
def test_a_command_that_is_written_wrongly_ends_with_2(run: Command, arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert "Usage:" in done.err
    assert "Traceback" not in done.err


def test_no_command_at_all_shows_the_help(run: Command) -> None:
    done = run()
    assert done.code in (0, 2)
    assert "Commands:" in done.out + done.err


def test_nothing_at_the_address_is_one_sentence_with_the_next_step() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = Command(f"kafka://127.0.0.1:{unused.getsockname()[1]}")("topics")
    assert done.code == 1
    assert re.fullmatch(r"penstock: nothing answers at 127\.0\.0\.1:\d+ \(.*\)\. Start a broker .*\n", done.err)


def test_a_url_that_cannot_be_used_is_one_sentence(run: Command) -> None:
    done = run("topics", "--url", "carrier-pigeon://coop")
    assert done.code == 1
    (said,) = done.err.splitlines()
    assert said.startswith("penstock: 'carrier-pigeon://coop' is not a URL of a stream; schemes that are installed: ")


def test_a_folder_can_be_used_without_starting_anything(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run = Command(f"log:{data}")
    try:
        run.well("produce", "greetings", given="hello\n")
        assert is_owned(data), "the broker stays for the next command"
        assert run.well("consume", "greetings", "--format", "raw").out == "hello\n"
    finally:
        stop_broker(data)


@pytest.mark.parametrize("output", [[], ["--format", "json"], ["--format", "raw"], ["--group", "head"]])
def test_a_reader_that_has_enough_is_no_error(run: Command, numbers: str, output: list[str]) -> None:
    """`| head -n 1`: far more is written than any pipe holds."""
    run.well("produce", numbers, given=b"x" * 1000 + b"\n" + b"".join(b"%0999d\n" % number for number in range(3000)))
    consume = subprocess.Popen(
        [*COMMAND, "consume", numbers, *output],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(run.environment),
    )
    assert consume.stdout is not None
    assert consume.stderr is not None
    assert consume.stdout.readline()
    consume.stdout.close()
    complaints = consume.stderr.read()
    consume.stderr.close()
    assert consume.wait(60) == 0
    assert complaints == b""


def test_a_table_that_nobody_reads_is_no_error(run: Command, numbers: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*COMMAND, "topics"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        env=dict(run.environment),
        timeout=60,
        check=False,
    )
    os.close(write_end)
    assert numbers
    assert (done.returncode, done.stderr) == (0, b"")
