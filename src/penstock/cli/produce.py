"""`penstock produce`: lines in, records out, and a count of what was acknowledged."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.output import count_text, say
from penstock.cli.stream import DEFAULT_URL, INTERRUPTED_FLUSH_S, Url, examples, open_stream, pairs
from penstock.errors import DeliveryError, PenstockError

if TYPE_CHECKING:
    from penstock.cli.input_lines import InputRecord
    from penstock.model import Receipt
    from penstock.streams import Connection

EXAMPLES: Final = examples(
    "echo hello | penstock produce greetings",
    "penstock produce orders --file orders.jsonl --json",
    "penstock produce users --key-separator : < users.txt",
    "penstock consume orders --format json | penstock produce orders.copy --json",
)

_SHOW_EVERY_S: Final = 0.1


class Acks(StrEnum):
    all = "all"
    one = "1"
    none = "0"


class Compression(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to write to.")],
    url: Url = DEFAULT_URL,
    file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, readable=True, help="Read this file, not standard input."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help='Each line is an object: "value", and if wanted "key", "headers", "timestamp" and "partition".',
        ),
    ] = False,
    key_separator: Annotated[str, typer.Option(help="Each line is a key, this, and a value.")] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header for every record; may be repeated.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Send everything to this partition.")] = None,
    acks: Annotated[
        Acks, typer.Option(help="all: survives a power cut, stored once. 1: survives a killed broker. 0: not known.")
    ] = Acks.all,
    compression: Annotated[Compression, typer.Option(help="How batches are compressed.")] = Compression.none,
    rate: Annotated[float | None, typer.Option(min=0.001, help="At most so many records a second.")] = None,
) -> None:
    """Send each line of the input as a record.

    A line that cannot be understood, or a record that is refused, ends it: what came before is acknowledged or named,
    and the number of the line says where to go on.
    """
    from penstock.cli.input_lines import parse_json, parse_key_and_value, parse_value, read_records

    if as_json and key_separator:
        raise typer.BadParameter("JSON lines name their keys: leave it away", param_hint="--key-separator")
    parse = parse_json if as_json else parse_key_and_value(key_separator.encode()) if key_separator else parse_value
    headers = tuple((name, value.encode()) for name, value in pairs(header, "--header").items())
    options: dict[str, Any] = {"compression": compression.value, "acks": "all" if acks is Acks.all else int(acks)}
    with _input(file) as lines, open_stream(url, **options) as stream:
        sending = Sending(stream, topic, headers, partition)
        with _progress(file) as show:
            try:
                for record in _paced(read_records(lines, parse), rate):
                    sending.send(record)
                    show(sending)
                    if sending.failure is not None:
                        break
                sending.finish(None)
            except (KeyboardInterrupt, SystemExit):
                sending.finish(INTERRUPTED_FLUSH_S)
                say(sending.summary())
                raise
            except PenstockError as error:
                sending.finish(None)
                raise DeliveryError(f"{error}. {sending.summary()}") from error
        if sending.failure is not None:
            number, reason = sending.failure
            raise DeliveryError(f"line {number}: {reason}. {sending.summary()}")
    say(sending.summary())


class Sending:
    """The records that are sent, and what has become of them."""

    def __init__(
        self, stream: Connection, topic: str, headers: tuple[tuple[str, bytes], ...], partition: int | None
    ) -> None:
        self._stream = stream
        self._topic = topic
        self._headers = headers
        self._partition = partition
        self._started_s = time.monotonic()
        self.sent = 0
        self.read_bytes = 0
        self.acknowledged = 0
        self.failure: tuple[int, DeliveryError] | None = None
        """The first line that was refused, and why."""

    def send(self, record: InputRecord) -> None:
        try:
            receipt = self._stream.send(
                self._topic,
                record.value,
                record.key,
                headers=(*self._headers, *record.headers),
                timestamp=record.timestamp_ms,
                partition=self._partition if record.partition is None else record.partition,
            )
        except DeliveryError as error:
            raise DeliveryError(f"line {record.number}: {error}") from error
        self.sent += 1
        self.read_bytes += record.length_bytes
        number = record.number
        receipt.add_done_callback(lambda done: self._settled(number, done))

    def _settled(self, number: int, receipt: Receipt) -> None:
        error = receipt.error
        if error is None:
            self.acknowledged += 1
        elif self.failure is None or number < self.failure[0]:
            self.failure = (number, error)

    def finish(self, timeout_s: float | None) -> None:
        """Wait for what is under way; the summary tells how much of it did not make it in time."""
        with contextlib.suppress(TimeoutError):
            self._stream.flush(timeout_s)

    def summary(self) -> str:
        elapsed_s = time.monotonic() - self._started_s
        speed = f" ({self.acknowledged / elapsed_s:,.0f}/s)" if elapsed_s > 0 and self.acknowledged > 1 else ""
        outcome = f"{count_text(self.acknowledged, 'record')} acknowledged in {elapsed_s:.2f} s{speed}"
        if self.acknowledged < self.sent:
            outcome += f", {self.sent - self.acknowledged:,} of those sent were not"
        return outcome


@contextmanager
def _input(file: Path | None) -> Iterator[IO[bytes]]:
    if file is not None:
        with file.open("rb") as lines:
            yield lines
        return
    if sys.stdin.isatty():
        say("One record a line; Ctrl-D ends the input.")
    yield sys.stdin.buffer


def _paced(records: Iterator[InputRecord], rate: float | None) -> Iterator[InputRecord]:
    """No more than `rate` a second, evenly."""
    if rate is None:
        yield from records
        return
    due_s = time.monotonic()
    for record in records:
        wait_s = due_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        due_s = max(due_s, time.monotonic() - 1) + 1 / rate
        yield record


@contextmanager
def _progress(file: Path | None) -> Iterator[Any]:
    """A function that shows how far it has come: on a terminal, ten times a second; elsewhere, nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    total_bytes = file.stat().st_size if file is not None else None
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sending", total=total_bytes)
        next_s = 0.0

        def show(sending: Sending) -> None:
            nonlocal next_s
            now_s = time.monotonic()
            if now_s >= next_s:
                next_s = now_s + _SHOW_EVERY_S
                description = f"{sending.sent:,} sent, {sending.acknowledged:,} acknowledged"
                bar.update(task, completed=sending.read_bytes, description=description)

        yield show
