"""The options of the format "penstock" when it reads: their names, what each may be, and what is refused."""

from __future__ import annotations

import base64
import binascii
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.columns import RECORD
from penstock.spark.source.positions import parse_position
from penstock.streams.options import ConnectOptions, options_of
from penstock.streams.url import LogUrl, MemoryUrl, parse_url
from penstock.streams.url_settings import resolved

Mode = Literal["records", "table"]
MODES: Final = ("records", "table")
CLIENT_PREFIX: Final = "client."
LIBRDKAFKA_PREFIX: Final = "librdkafka."

NAMES: Final = {
    "url": "which stream: log:./data, kafka://host:9092",
    "topic": "which topic of it",
    "mode": "records (all of them), or table (the latest value of each key)",
    "startingPosition": 'earliest, latest, a time, or a pointer for each partition as JSON: {"0": 17}',
    "endingPosition": "the same, for batch reads",
    "maxRecordsPerBatch": "how many records a micro-batch takes at most",
    "maxBytesPerBatch": "how many bytes of records a micro-batch takes, about",
    "onExpired": "fail, earliest, latest or a time: where to go on when the next records are gone",
    "tasks": "how many tasks share a large batch",
    "columns": "which columns of a record are wanted, such as value,timestamp; all, unless given",
    "decoder": "a pickled decoder, as base64; read_stream(decoder=...) writes it",
}
_BY_LOWER: Final = {name.lower(): name for name in NAMES}
_ONLY_STREAMING: Final = ("maxRecordsPerBatch", "maxBytesPerBatch", "onExpired")
_ONLY_BATCH: Final = ("endingPosition",)
_NOT_FOR_TABLES: Final = (*_ONLY_STREAMING, "startingPosition", "endingPosition", "tasks", "columns")

Number = TypeVar("Number", int, float)


class Decoder(Protocol):
    """What turns records into typed columns inside the source. `penstock.spark.decoding` makes such."""

    @property
    def schema(self) -> StructType: ...

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of `schema` for rows of RECORD; those that cannot be decoded are sent elsewhere, not given out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What is read, and how. Made by `parse_options`; it is pickled and goes to all tasks."""

    url: str
    """With the folder of a log: URL made absolute, so that it means the same in every process, and a kafka: URL without
    its settings, which are in `client`."""
    topic: str
    mode: Mode = "records"
    start: str = "earliest"
    end: str = "latest"
    max_records: int | None = None
    max_bytes: int | None = None
    on_expired: str = "fail"
    tasks: int = 1
    columns: tuple[str, ...] = tuple(RECORD.names)
    decoder: bytes | None = None
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of `connect`."""

    def new_decoder(self) -> Decoder | None:
        if self.decoder is None:
            return None
        decoder: Decoder = pickle.loads(self.decoder)
        return decoder

    def schema(self) -> StructType:
        decoder = self.new_decoder()
        if decoder is not None:
            return decoder.schema
        return StructType([RECORD[name] for name in self.columns])


def pickled(decoder: Decoder) -> str:
    """A decoder as the text of an option."""
    return base64.b64encode(cloudpickle.dumps(decoder)).decode()  # type: ignore[no-untyped-call]


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """What the options of a reader mean. ConfigError and UrlError name the option, and say what may be written."""
    options, client = _sorted_out(given)
    for name in ("url", "topic"):
        if not options.get(name):
            raise ConfigError(f'the format "penstock" needs the option {name!r}: {NAMES[name]}')
    mode = _choice(options, "mode", MODES)
    _refuse_meaningless(options, streaming, mode)
    decoder = _decoder(options)
    if decoder is not None and "columns" in options:
        raise ConfigError("the option 'columns' means nothing beside a decoder, which decides about the columns")
    for name in ("startingPosition", "endingPosition"):
        if name in options:
            parse_position(options[name], name)
    on_expired = options.get("onExpired", "fail")
    if on_expired != "fail":
        parse_position(on_expired, "onExpired", pointers=False, besides="fail")
    url, client = resolved(_checked_url(options["url"]), client)
    return SourceOptions(
        url=url,
        topic=options["topic"],
        mode="table" if mode == "table" else "records",
        start=options.get("startingPosition", "earliest"),
        end=options.get("endingPosition", "latest"),
        max_records=_positive(options, "maxRecordsPerBatch", int),
        max_bytes=_positive(options, "maxBytesPerBatch", int),
        on_expired=on_expired,
        tasks=_positive(options, "tasks", int) or os.cpu_count() or 1,
        columns=_columns(options),
        decoder=decoder,
        client=client,
    )


def _sorted_out(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """The options by their proper names, and those that are for the client."""
    options: dict[str, str] = {}
    settings: dict[str, str] = {}
    for written, value in given.items():
        name = _BY_LOWER.get(written.lower())
        if name is not None:
            options[name] = value
        elif written.lower().startswith(CLIENT_PREFIX):
            settings[written[len(CLIENT_PREFIX) :].lower()] = value
        else:
            raise ConfigError(
                f'the format "penstock" has no option {written!r} for reading; it has {", ".join(NAMES)}, '
                "and client.NAME for options of the client"
            )
    return options, client_options(settings)


def client_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """Options of `connect` out of their texts. What begins with `librdkafka.` is a setting of librdkafka."""
    options: dict[str, Any] = {}
    librdkafka: dict[str, Any] = {}
    for name, value in settings.items():
        if name.startswith(LIBRDKAFKA_PREFIX):
            librdkafka[name[len(LIBRDKAFKA_PREFIX) :]] = value
        elif name not in ConnectOptions.__annotations__ or name == "librdkafka":
            known = [each for each in ConnectOptions.__annotations__ if each != "librdkafka"]
            raise ConfigError(
                f"the client has no option {name!r}; it has {', '.join(known)}, and {LIBRDKAFKA_PREFIX}NAME"
            )
        else:
            options[name] = _client_value(name, value)
    if librdkafka:
        options["librdkafka"] = librdkafka
    options_of(ConnectOptions(**options))  # type: ignore[typeddict-item]  # it refuses what is wrong, by name
    return options


def _client_value(name: str, value: str) -> Any:
    if name in ("client_id", "compression"):
        return value
    if name == "acks":
        return int(value) if value in ("0", "1") else value
    return _number(name, value, float)


def client_texts(client: Mapping[str, Any]) -> dict[str, str]:
    """The options of `connect` as options of the format: what `client_options` takes apart again."""
    options_of(ConnectOptions(**client))  # type: ignore[typeddict-item]
    texts = {}
    for name, value in client.items():
        if name == "librdkafka":
            for setting, its in (value or {}).items():
                text = str(its).lower() if isinstance(its, bool) else str(its)
                texts[f"{CLIENT_PREFIX}{LIBRDKAFKA_PREFIX}{setting}"] = text
        elif value is not None:
            texts[f"{CLIENT_PREFIX}{name}"] = str(value)
    return texts


def _refuse_meaningless(options: Mapping[str, str], streaming: bool, mode: str) -> None:
    meaningless: tuple[str, ...]
    if mode == "table":
        if streaming:
            raise ConfigError("mode=table is for batch reads: a stream of changes is mode=records on the same topic")
        meaningless, why = _NOT_FOR_TABLES, "mode=table, which is all that is there"
    elif streaming:
        meaningless, why = _ONLY_BATCH, "a stream, which has no end"
    else:
        meaningless, why = _ONLY_STREAMING, "a batch read, which takes everything between its two positions"
    for name in meaningless:
        if name in options:
            raise ConfigError(f"the option {name!r} means nothing to {why}: leave it away")


def _checked_url(url: str) -> str:
    where = parse_url(url)
    if isinstance(where, MemoryUrl):
        raise ConfigError(
            f"{url} is the memory of one process, and Spark reads in others: use log:FOLDER, which needs no server"
        )
    return f"log:{Path(os.path.abspath(where.folder))}" if isinstance(where, LogUrl) else url


def _choice(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = options.get(name, allowed[0]).lower()
    if value not in allowed:
        raise ConfigError(f"the option {name!r} is {options[name]!r}; it may be {' or '.join(allowed)}")
    return value


def _positive(options: Mapping[str, str], name: str, kind: Callable[[str], int]) -> int | None:
    if name not in options:
        return None
    value = _number(name, options[name], kind)
    if value < 1:
        raise ConfigError(f"the option {name!r} is {options[name]}; it must be at least 1")
    return value


def _number(name: str, value: str, kind: Callable[[str], Number]) -> Number:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"the option {name!r} is {value!r}, which is no number") from None


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" not in options:
        return tuple(RECORD.names)
    columns = tuple(name.strip() for name in options["columns"].split(","))
    for name in columns:
        if name not in RECORD.names:
            raise ConfigError(f"a record has no column {name!r}; it has {', '.join(RECORD.names)}")
    if len(set(columns)) != len(columns):
        raise ConfigError(f"the option 'columns' names one twice: {options['columns']}")
    return columns


def _decoder(options: Mapping[str, str]) -> bytes | None:
    if "decoder" not in options:
        return None
    try:
        return base64.b64decode(options["decoder"], validate=True)
    except binascii.Error:
        raise ConfigError("the option 'decoder' is no base64: give the decoder to read_stream(decoder=...)") from None
