"""`penstock produce`: send lines as records, and count what was acknowledged."""

from __future__ import annotations

import base64
import binascii
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock.cli.options import DEFAULT_URL, Url, examples, pairs
from penstock.cli.output import say
from penstock.cli.stream import INTERRUPTED_FLUSH_S, check_is_topic, open_connection
from penstock.errors import DeliveryError, PenstockError
from penstock.model import Headers, Receipt
from penstock.model.text import count_text
from penstock.streams import Connection

FIELDS: Final = frozenset(
    {"key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition", "topic", "offset"}
)
"""The fields of a JSON object. `topic` and `offset`, which `consume --format json` writes, are ignored, so that its
output can be produced again."""


class BadInputError(PenstockError):
    """A line of the input cannot be sent."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}: {reason}")
        self.number = number
        self.reason = reason


@dataclass(frozen=True, slots=True)
class InputRecord:
    number: int
    length_bytes: int
    """The size of the line, with its line end."""
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


Parser = Callable[[int, int, bytes], InputRecord]


def read_records(lines: Iterable[bytes], parse: Parser) -> Iterator[InputRecord]:
    """The records of the lines. Raises BadInputError for the first bad line."""
    for number, line in enumerate(lines, start=1):
        yield parse(number, len(line), line.removesuffix(b"\n"))


def parse_value(number: int, length_bytes: int, line: bytes) -> InputRecord:
    return InputRecord(number, length_bytes, line)


def parse_key_and_value(separator: bytes) -> Parser:
    """The line is a key, the separator, and a value, which may contain the separator."""

    def parse(number: int, length_bytes: int, line: bytes) -> InputRecord:
        key, found, value = line.partition(separator)
        if not found:
            raise BadInputError(number, f"the key separator {separator.decode(errors='replace')!r} is not in it")
        return InputRecord(number, length_bytes, value, key)

    return parse


def parse_json(number: int, length_bytes: int, line: bytes) -> InputRecord:
    """The line is an object with `value` and optionally `key`, `headers`, `timestamp` and `partition`.

    Text is sent as it is, other values as JSON. `value_base64` and `key_base64` hold what is not text.
    """
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise BadInputError(number, f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadInputError(number, 'not a JSON object, such as {"key": "ada", "value": "hello"}')
    unknown = sorted(fields.keys() - FIELDS)
    if unknown:
        raise BadInputError(number, f"unknown field {unknown[0]!r}; known are {', '.join(sorted(FIELDS))}")
    if "value" not in fields and "value_base64" not in fields:
        raise BadInputError(number, 'no "value"; write "value": null for a record without one')
    return InputRecord(
        number,
        length_bytes,
        _bytes(number, fields, "value"),
        _bytes(number, fields, "key"),
        _headers(number, fields.get("headers")),
        _whole_number(number, fields, "timestamp", least=1),
        _whole_number(number, fields, "partition", least=0),
    )


def _bytes(number: int, fields: dict[str, Any], name: str) -> bytes | None:
    encoded = f"{name}_base64"
    if encoded in fields:
        if name in fields:
            raise BadInputError(number, f'both "{name}" and "{encoded}"')
        return _from_base64(number, encoded, fields[encoded])
    value = fields.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _from_base64(number: int, name: str, text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise BadInputError(number, f'"{name}" is not base64')


def _headers(number: int, headers: object) -> Headers:
    pairs: list[Any] = list(headers.items()) if isinstance(headers, dict) else headers  # type: ignore[assignment]
    if pairs is None:
        return ()
    if not isinstance(pairs, list):
        raise BadInputError(number, '"headers" is neither an object nor a list of [name, value]')
    found = []
    for pair in pairs:
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise BadInputError(number, f"a header is not [name, value] but {msgspec.json.encode(pair).decode()}")
        found.append((pair[0], _header_value(number, pair[0], pair[1])))
    return tuple(found)


def _header_value(number: int, name: str, value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return _from_base64(number, f"headers.{name}", value["base64"])
    raise BadInputError(number, f'the header {name!r} is neither text, null nor {{"base64": "..."}}')


def _whole_number(number: int, fields: dict[str, Any], name: str, least: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInputError(
            number, f'"{name}" is {msgspec.json.encode(value).decode()}, not a whole number from {least}'
        )
    return value


app = typer.Typer(rich_markup_mode=None)

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


@app.command("produce", epilog=EXAMPLES)
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
            help='Each line is an object: "value", and optionally "key", "headers", "timestamp" and "partition".',
        ),
    ] = False,
    key_separator: Annotated[str, typer.Option(help="Each line is a key, this, and a value.")] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header for every record; may be repeated.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Send everything to this partition.")] = None,
    acks: Annotated[
        Acks, typer.Option(help="all: survives a power cut, stored once. 1: survives a killed broker. 0: unknown.")
    ] = Acks.all,
    compression: Annotated[Compression, typer.Option(help="How batches are compressed.")] = Compression.none,
    rate: Annotated[float | None, typer.Option(min=0.001, help="At most this many records a second.")] = None,
) -> None:
    """Send each line of the input as a record.

    A bad line, or a refused record, ends it: everything before is acknowledged or named, and the number of the line
    says where to continue.
    """
    check_is_topic(topic)
    if as_json and key_separator:
        raise typer.BadParameter("JSON lines name their keys: omit it", param_hint="--key-separator")
    parse = parse_json if as_json else parse_key_and_value(key_separator.encode()) if key_separator else parse_value
    headers = tuple((name, value.encode()) for name, value in pairs(header, "--header").items())
    options: dict[str, Any] = {}  # only what was asked for: other streams than Kafka's have options of their own
    if compression is not Compression.none:
        options["compression"] = compression.value
    if acks is not Acks.all:
        options["acks"] = int(acks)
    with _input(file) as lines, open_connection(url, **options) as stream:
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
    """The records that were sent, and their outcomes."""

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
        """Wait for acknowledgements; the summary counts those that did not arrive in time."""
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
        say("One record per line; Ctrl-D ends the input.")
    yield sys.stdin.buffer


def _paced(records: Iterator[InputRecord], rate: float | None) -> Iterator[InputRecord]:
    """At most `rate` records a second, evenly."""
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
    """A function that shows progress: on a terminal, ten times a second; elsewhere, not at all."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
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
