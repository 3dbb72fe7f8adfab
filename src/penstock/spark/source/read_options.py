"""The options of the format "penstock" for reading, and the decoder among them."""

from __future__ import annotations

import base64
import binascii
import json
import os
import pickle
import re
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, Protocol, TypeVar, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.source.admission import ALIGNMENTS, Alignment
from penstock.spark.source.origin import TopicSelection
from penstock.spark.source.positions import SINGLE_FORMS, parse_position, parse_single_position
from penstock.spark.values.columns import RECORD, record_schema, stream_has_offsets
from penstock.streams.connecting import check_url
from penstock.streams.options import ConnectOptions, options_of
from penstock.streams.schemes import scheme_of
from penstock.streams.url import KAFKA_SCHEMES, is_memory, log_folder
from penstock.streams.url_settings import resolved

Mode = Literal["records", "table"]
MODES: Final = ("records", "table")
CLIENT_PREFIX: Final = "client."
LIBRDKAFKA_PREFIX: Final = "librdkafka."

NAMES: Final = {
    "url": "the stream: log:./data, kafka://host:9092",
    "topic": "the topic",
    "topics": 'several topics, as JSON: ["orders", "returns"]',
    "topicPattern": "a regular expression: all topics whose whole name matches are read, also those created later",
    "secretUrl": "the stream, by a URL with a password: Spark does not show this option; read_stream sets it",
    "mode": "records (all of them), or table (the latest value of each key)",
    "startingPosition": 'earliest, latest, a time, or a pointer for each partition as JSON: {"0": 17}',
    "endingPosition": "the same, for batch reads",
    "maxRecordsPerBatch": "the maximum number of records in a micro-batch",
    "maxBytesPerBatch": "the approximate maximum number of bytes in a micro-batch",
    "alignPartitions": "auto, timestamp or never: whether limited batches cut all partitions at a common time",
    "onExpired": "fail, earliest, latest or a time: where to continue when the next records have expired",
    "tasks": "the number of tasks for a large batch",
    "columns": "the columns of a record to read, such as value,timestamp; the default is all",
    "decoder": "a pickled decoder, as base64; read_stream(decoder=...) sets it",
}
_ONLY_STREAMING: Final = ("maxRecordsPerBatch", "maxBytesPerBatch", "alignPartitions", "onExpired")
_ONLY_BATCH: Final = ("endingPosition",)
_NOT_FOR_TABLES: Final = (
    *_ONLY_STREAMING,
    "startingPosition",
    "endingPosition",
    "tasks",
    "columns",
    "topics",
    "topicPattern",
)

Number = TypeVar("Number", int, float)


class RowDecoder(Protocol):
    """Decodes records into typed columns inside the source, such as `penstock.spark.values.decoding.Decoder`."""

    @property
    def schema(self) -> StructType: ...

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of `schema` for rows of RECORD, without records that cannot be decoded, which go to dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The parsed options. They are pickled and sent to all tasks."""

    url: str = field(repr=False)
    """A log: URL with an absolute path, so that it means the same in every process, or a kafka: URL without its
    settings, which are in `client`."""
    selection: TopicSelection
    mode: Mode = "records"
    start: str = "earliest"
    end: str = "latest"
    max_records: int | None = None
    max_bytes: int | None = None
    alignment: Alignment = "auto"
    on_expired: str = "fail"
    tasks: int = 1
    columns: tuple[str, ...] = tuple(RECORD.names)
    decoder: bytes | None = None
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of `connect`."""

    @property
    def topic(self) -> str:
        """The only topic."""
        assert self.selection.is_single
        return self.selection.names[0]

    def schema(self) -> StructType:
        """The columns that are read. Opens a stream that is not Kafka's, to ask what its pointers are."""
        if self.decoder is not None:
            return decoder_of(self.decoder).schema
        record = record_schema(has_offsets=stream_has_offsets(self.url, self.client))
        return StructType([record[name] for name in self.columns])


def pickled(decoder: RowDecoder) -> str:
    """A decoder as the text of an option."""
    return base64.b64encode(cloudpickle.dumps(decoder)).decode()  # type: ignore[no-untyped-call]


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse and check the options of a reader. ConfigError and UrlError name the option."""
    options, settings = named_options(given, NAMES, "reading")
    written_url = options.get("secretUrl") or options["url"]
    selection = _selection(options)
    client = client_options(settings, written_url)
    mode = choice(options, "mode", MODES)
    _refuse_meaningless(options, streaming, mode)
    decoder = _decoder(options)
    if decoder is not None and "columns" in options:
        raise ConfigError("the option 'columns' cannot be combined with a decoder, which defines the columns: omit it")
    for name in ("startingPosition", "endingPosition"):
        if name in options:
            parse_position(options[name], name, selection.names)
    on_expired = options.get("onExpired", "fail")
    if on_expired != "fail":
        parse_single_position(on_expired, "onExpired", f"fail, {SINGLE_FORMS}")
    url, client = resolved(absolute_url(written_url), client)
    return SourceOptions(
        url=url,
        selection=selection,
        mode="table" if mode == "table" else "records",
        start=options.get("startingPosition", "earliest"),
        end=options.get("endingPosition", "latest"),
        max_records=positive(options, "maxRecordsPerBatch"),
        max_bytes=positive(options, "maxBytesPerBatch"),
        alignment=_alignment(options),
        on_expired=on_expired,
        tasks=positive(options, "tasks") or os.cpu_count() or 1,
        columns=_columns(options),
        decoder=decoder,
        client=client,
    )


def _selection(options: Mapping[str, str]) -> TopicSelection:
    given = [name for name in ("topic", "topics", "topicPattern") if options.get(name)]
    if not given:
        raise ConfigError(
            f"the format \"penstock\" needs the option 'topic': {NAMES['topic']}; or 'topics', or 'topicPattern'"
        )
    if len(given) > 1:
        raise ConfigError(f"the options {given[0]!r} and {given[1]!r} exclude each other: omit one")
    if "topics" in given:
        return TopicSelection(_names(options["topics"]))
    if "topicPattern" in given:
        try:
            re.compile(options["topicPattern"])
        except re.error as error:
            raise ConfigError(
                f"the option 'topicPattern' is {options['topicPattern']!r}, which is not a regular expression: {error}"
            ) from None
        return TopicSelection((), options["topicPattern"])
    return TopicSelection((options["topic"],))


def _names(text: str) -> tuple[str, ...]:
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f'the option \'topics\' is {text!r}; names are written as ["orders", "returns"]')
    if len(set(names)) != len(names):
        raise ConfigError(f"the option 'topics' contains a duplicate: {text}")
    return tuple(names)


def named_options(
    given: Mapping[str, str], names: Collection[str], purpose: str, ignored: Container[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """The options by their exact names, as Spark ignores case, and the options of the client.

    Raises ConfigError for an option that is neither in `names` nor, in lower case, in `ignored`.
    """
    by_lower = {name.lower(): name for name in names}
    options: dict[str, str] = {}
    settings: dict[str, str] = {}
    for written, value in given.items():
        lower = written.lower()
        if lower in by_lower:
            options[by_lower[lower]] = value
        elif lower.startswith(CLIENT_PREFIX):
            settings[lower.removeprefix(CLIENT_PREFIX)] = value
        elif lower not in ignored:
            raise ConfigError(
                f'the format "penstock" has no option {written!r} for {purpose}; it has {", ".join(names)}, and '
                "client.NAME for options of the client"
            )
    if not options.get("url") and not options.get("secretUrl"):
        raise ConfigError("the format \"penstock\" needs the option 'url', such as log:./data or kafka://host:9092")
    return options, settings


def client_options(settings: Mapping[str, str], url: str) -> dict[str, Any]:
    """Parse options of `connect`. Names that begin with `librdkafka.` are settings of librdkafka.

    For streams that do not speak Kafka's protocol, a value is JSON, or else text; their backend checks it.
    """
    if scheme_of(url) not in KAFKA_SCHEMES:
        return {name: _json_or_text(value) for name, value in settings.items()}
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
    options_of(ConnectOptions(**options))  # type: ignore[typeddict-item]  # raises ConfigError for a bad value
    return options


def _client_value(name: str, value: str) -> Any:
    if name in ("client_id", "compression"):
        return value
    if name == "acks":
        return int(value) if value in ("0", "1") else value
    return number(name, value, float)


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def client_texts(client: Mapping[str, Any], url: str) -> dict[str, str]:
    """The options of `connect` as options of the format: the inverse of `client_options`."""
    if scheme_of(url) not in KAFKA_SCHEMES:
        return {f"{CLIENT_PREFIX}{name}": _json_text(name, value) for name, value in client.items()}
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


def _json_text(name: str, value: Any) -> str:
    if name != name.lower():
        raise ConfigError(f"the client option {name!r} cannot be passed to Spark, whose options are in lower case")
    try:
        return json.dumps(value)
    except TypeError as error:
        raise ConfigError(f"the client option {name!r} cannot be passed to Spark, as it is not JSON: {error}") from None


def _refuse_meaningless(options: Mapping[str, str], streaming: bool, mode: str) -> None:
    meaningless: tuple[str, ...]
    if mode == "table":
        if streaming:
            raise ConfigError("mode=table is for batch reads: to stream the changes, use mode=records")
        meaningless, why = _NOT_FOR_TABLES, "mode=table, which reads the whole topic"
    elif streaming:
        meaningless, why = _ONLY_BATCH, "a stream, which has no end"
    else:
        meaningless, why = _ONLY_STREAMING, "a batch read, which reads everything between its two positions"
    for name in meaningless:
        if name in options:
            raise ConfigError(f"the option {name!r} does not apply to {why}: omit it")


def absolute_url(url: str) -> str:
    """The URL with an absolute path if it is a log's. Raises ConfigError for one that other processes cannot open."""
    check_url(url)
    if is_memory(url):
        raise ConfigError(
            f"{url} exists only in this process, and Spark uses others: use log:FOLDER, which needs no server"
        )
    folder = log_folder(url)
    return f"log:{os.path.abspath(folder)}" if folder is not None else url


def choice(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = options.get(name, allowed[0]).lower()
    if value not in allowed:
        raise ConfigError(f"the option {name!r} is {options[name]!r}; it may be {' or '.join(allowed)}")
    return value


def _alignment(options: Mapping[str, str]) -> Alignment:
    if "alignPartitions" in options and not {"maxRecordsPerBatch", "maxBytesPerBatch"} & options.keys():
        raise ConfigError(
            "the option 'alignPartitions' needs a limit: give maxRecordsPerBatch or maxBytesPerBatch too, or omit it"
        )
    return cast(Alignment, choice(options, "alignPartitions", ALIGNMENTS))


def positive(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    value = number(name, options[name], int)
    if value < 1:
        raise ConfigError(f"the option {name!r} is {options[name]}; it must be at least 1")
    return value


def number(name: str, value: str, kind: Callable[[str], Number]) -> Number:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"the option {name!r} is {value!r}; it must be a number") from None


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" not in options:
        return tuple(RECORD.names)
    columns = tuple(name.strip() for name in options["columns"].split(","))
    for name in columns:
        if name not in RECORD.names:
            raise ConfigError(f"a record has no column {name!r}; it has {', '.join(RECORD.names)}")
    if len(set(columns)) != len(columns):
        raise ConfigError(f"the option 'columns' contains a duplicate: {options['columns']}")
    return columns


def _decoder(options: Mapping[str, str]) -> bytes | None:
    if "decoder" not in options:
        return None
    try:
        return base64.b64decode(options["decoder"], validate=True)
    except binascii.Error:
        raise ConfigError("the option 'decoder' is not base64: pass the decoder to read_stream(decoder=...)") from None


def decoded(rows: Iterator[pa.RecordBatch], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows decoded by the decoder of the options, if there is one."""
    if options.decoder is None:
        return rows
    decoder = decoder_of(options.decoder)
    return (batch for batch in map(decoder.decode, rows) if len(batch))


@lru_cache(maxsize=16)
def decoder_of(content: bytes) -> RowDecoder:
    """Unpickle a decoder, once for all tasks of this process: it may keep resources open."""
    decoder: RowDecoder = pickle.loads(content)
    return decoder
