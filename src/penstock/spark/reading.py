"""Topics as DataFrames: `read_stream`, `read_batch` and `read_table`, for programs in plain Spark.

Two engines read the same columns. "python" is Penstock's own source, the format "penstock": it reads any stream, and an
embedded log on the same host directly from its files. "native" is Spark's own Kafka connector, for `kafka:` and `log:`
URLs; it needs a jar (`penstock spark jars` downloads it), and real-time mode needs it. "auto" uses the files for `log:`
URLs, which need no network and no second copy of the records; the connector, if available, for `kafka:` URLs, as it
reads in the JVM; and the python engine where only that one can do the job (a limit in bytes, continuing at "latest" or
at a time after records expired, other streams). A query of the python engine takes longer to start, as Spark starts
Python processes to plan it; `benchmarks/spark_source.py` compares the two.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.abc import Feature
from penstock.errors import ConfigError, ConnectorMissingError, UnknownTopicError
from penstock.spark.jvm import jvm_of
from penstock.spark.run.settings import ENGINES, Engine
from penstock.spark.sessions.defaults import local_cores
from penstock.spark.sessions.opening import has_connector
from penstock.spark.sessions.worker_environment import set_source_environment
from penstock.spark.source.admission import Alignment
from penstock.spark.source.format import PenstockDataSource
from penstock.spark.source.held_brokers import held_broker
from penstock.spark.source.native import (
    as_records,
    connector_options,
    decoded_by,
    loss_options,
    position_options,
)
from penstock.spark.source.positions import Start, is_time, position_text
from penstock.spark.source.read_options import RowDecoder, SourceOptions, client_texts, parse_options, pickled
from penstock.spark.source.topic_view import TopicView, open_topics
from penstock.spark.values.columns import RECORD
from penstock.streams.topic_patterns import TopicChoice, TopicPattern, topics_of
from penstock.streams.url import kafka_url, log_folder, without_password

FORMAT = PenstockDataSource.name()
_log = logging.getLogger("penstock.spark")
_registered: set[str] = set()
"""The applications on clusters with which this process has registered the format."""


def register(spark: SparkSession) -> None:
    """Register the format "penstock" with a session. Where Penstock is installed, Spark finds it without this call."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    application = spark.sparkContext.applicationId
    # One that Spark found by itself is run by the Python of the driver, without the files that executors were sent.
    is_strange = local_cores(spark.sparkContext.master or "") is None and application not in _registered
    if is_strange or not sources.dataSourceExists(FORMAT):  # Spark warns when a registration replaces another
        spark.dataSource.register(PenstockDataSource)
        _registered.add(application)
    set_source_environment(spark, sources.lookupDataSource(FORMAT))


def read_stream(
    spark: SparkSession,
    url: str,
    topic: TopicChoice,
    *,
    engine: Engine = "auto",
    start: Start = "earliest",
    max_records_per_batch: int | None = None,
    max_bytes_per_batch: int | None = None,
    align_partitions: Alignment | None = None,
    on_expired: str = "fail",
    decoder: RowDecoder | None = None,
    client: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Read a topic as a streaming DataFrame of RECORD, or of the decoder's columns.

    `topic` may also be a list of names, or a pattern (`re.compile(...)` or a `TopicPattern`): the column `topic` tells
    them apart. Topics that match a pattern and are created later are read from their beginning. A deleted topic ends
    the query if it is the only one, or if records of it were not read and `on_expired` is "fail".

    `start` is where a query without a checkpoint begins: "earliest", "latest", a time, or a pointer for each partition.
    A batch reads at most `max_records_per_batch` records and about `max_bytes_per_batch` bytes, from each partition in
    proportion to its backlog; without a limit, it reads the whole backlog. With `align_partitions="timestamp"`, limited
    batches cut all partitions at a common record timestamp; "auto", the default, does so if the backlog covers a long
    time; "never" does not. `on_expired` decides what happens when the next records have expired: "fail", or continue at
    "earliest", "latest" or a time. `client` has options of `penstock.connect`.

    Raises ConfigError, UrlError, BrokerUnavailableError and UnknownTopicError at once. Later problems end the query
    with an error of the same name.
    """
    texts = {
        **_given("maxRecordsPerBatch", max_records_per_batch),
        **_given("maxBytesPerBatch", max_bytes_per_batch),
        **_given("alignPartitions", align_partitions),
        "onExpired": on_expired,
        "startingPosition": position_text(start),
    }
    source = _checked_input(spark, url, topic, texts, decoder, client, streaming=True)
    native_can = max_bytes_per_batch is None and align_partitions != "timestamp" and on_expired in ("fail", "earliest")
    if _engine(spark, source, engine, native_can=native_can) == "python":
        register(spark)
        return _with_topic(spark.readStream.format(FORMAT).options(**source.without_topic()).load(), source)
    if max_bytes_per_batch is not None:
        raise ConfigError('the Kafka connector has no limit in bytes: use max_records_per_batch, or engine="python"')
    if align_partitions == "timestamp":
        raise ConfigError('the Kafka connector cannot align partitions: omit align_partitions, or use engine="python"')
    options = {
        **connector_options(source.bootstrap, source.options.selection, source.options.client),
        **position_options(source.options.selection.names, source.options.start, "startingPosition", streaming=True),
        **loss_options(on_expired),
        **_given("maxOffsetsPerTrigger", max_records_per_batch),
    }
    return _through_connector(spark.readStream.format("kafka").options(**options).load(), source.options)


def read_batch(
    spark: SparkSession,
    url: str,
    topic: TopicChoice,
    *,
    engine: Engine = "auto",
    start: Start = "earliest",
    end: Start = "latest",
    decoder: RowDecoder | None = None,
    client: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Read the records between two positions, resolved when the query is planned. See `read_stream`."""
    texts = {"startingPosition": position_text(start), "endingPosition": position_text(end)}
    source = _checked_input(spark, url, topic, texts, decoder, client, streaming=False)
    if _engine(spark, source, engine, native_can=_native_can_batch(source.options)) == "python":
        register(spark)
        return _with_topic(spark.read.format(FORMAT).options(**source.without_topic()).load(), source)
    names = source.options.selection.names
    options = {
        **connector_options(source.bootstrap, source.options.selection, source.options.client),
        **position_options(names, source.options.start, "startingPosition", streaming=False),
        **position_options(names, source.options.end, "endingPosition", streaming=False),
    }
    return _through_connector(spark.read.format("kafka").options(**options).load(), source.options)


def read_table(
    spark: SparkSession,
    url: str,
    topic: str,
    *,
    decoder: RowDecoder | None = None,
    client: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Read a keyed topic as a table: the latest value of each key, without keys whose latest value is null.

    A join with a stream sees the table as of the start of each micro-batch's tasks, without a restart: Python workers
    keep the table between batches and read what is new. Records without a key are ignored. Only queries started after
    the topic got a new partition read it.
    """
    source = _checked_input(spark, url, topic, {"mode": "table"}, decoder, client, streaming=False)
    register(spark)
    return spark.read.format(FORMAT).options(**source.texts).load()


@dataclass(frozen=True, slots=True)
class _Input:
    """Checked options: the stream answered, and the topic exists."""

    options: SourceOptions
    texts: dict[str, str]
    """The options of the format."""
    bootstrap: str
    """The bootstrap address of Kafka or an embedded log; empty for other streams."""

    def without_topic(self) -> dict[str, str]:
        """The options without the column `topic` if there is one: its text need not be sent with every record."""
        if self.options.decoder is not None or not self.options.selection.is_single:
            return self.texts
        return {**self.texts, "columns": ",".join(name for name in RECORD.names if name != "topic")}


def _checked_input(
    spark: SparkSession,
    url: str,
    topic: TopicChoice,
    more: Mapping[str, str],
    decoder: RowDecoder | None,
    client: Mapping[str, Any] | None,
    *,
    streaming: bool,
) -> _Input:
    jvm_of(spark)
    texts = {"url": url, **_topic_texts(topic), **more, **client_texts(client or {}, url)}
    if decoder is not None:
        texts["decoder"] = pickled(decoder)
    if more.get("mode") != "table":
        texts["tasks"] = str(spark.sparkContext.defaultParallelism)
    options = parse_options(texts, streaming=streaming)
    shown = without_password(options.url)
    texts |= {"url": shown, **client_texts(options.client, options.url)}
    if shown != options.url:
        texts["secretUrl"] = options.url
    bootstrap = bootstrap_of(options.url, options.client)
    view = open_topics(options.url, options.selection, options.client)
    try:
        _check_view(view, options, shown)
    finally:
        view.close()
    return _Input(options, texts, bootstrap)


def bootstrap_of(url: str, client: Mapping[str, Any]) -> str:
    """The brokers of Kafka or of an embedded log, whose URL is absolute; "" for other streams."""
    if (kafka := kafka_url(url)) is not None:
        return kafka.bootstrap
    return held_broker(url, client).bootstrap if log_folder(url) is not None else ""


def _topic_texts(choice: TopicChoice) -> dict[str, str]:
    topics = topics_of(choice)
    if isinstance(topics, TopicPattern):
        return {"topicPattern": pattern_text(topics.pattern)}
    names = [str(topic) for topic in topics]
    return {"topic": names[0]} if len(names) == 1 else {"topics": json.dumps(names)}


def pattern_text(pattern: re.Pattern[str]) -> str:
    """A compiled pattern as text, with its flags."""
    letters = "".join(letter for letter, flag in _FLAGS if pattern.flags & flag)
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern


_FLAGS: Final = (("a", re.ASCII), ("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL), ("x", re.VERBOSE))


def _check_view(view: TopicView, options: SourceOptions, shown: str) -> None:
    there = {topic for topic, _ in view.describe().partitions}
    missing = [name for name in options.selection.names if name not in there]
    if missing:
        raise UnknownTopicError(f"there is no topic {missing[0]!r}")
    for name, text in (("start", options.start), ("end", options.end), ("on_expired", options.on_expired)):
        if is_time(text) and Feature.TIMES not in view.features:
            raise ConfigError(f"{name}={text!r} is not available on {shown}: it has no {Feature.TIMES}")
    if options.alignment == "timestamp" and Feature.OFFSETS in view.features and Feature.TIMES not in view.features:
        raise ConfigError(f"align_partitions='timestamp' is not available on {shown}: it has no {Feature.TIMES}")
    if options.selection.pattern is not None:
        _log.info("%s of %s: %s", options.selection, shown, ", ".join(sorted(there)) or "none yet")


def _engine(spark: SparkSession, source: _Input, asked: Engine, *, native_can: bool) -> Engine:
    if asked not in ENGINES:
        raise ConfigError(f"engine={asked!r} is not allowed: use {', '.join(ENGINES)}")
    if asked == "native":
        if not source.bootstrap:
            raise ConfigError(f'{without_password(source.options.url)} is not Kafka: use engine="python"')
        if not has_connector(spark):
            raise ConnectorMissingError(
                "Spark's Kafka connector is not on the class path: run `penstock spark jars` once and create the "
                'session with penstock.spark.session(), or use engine="python"'
            )
        return "native"
    if asked == "python" or not native_can or kafka_url(source.options.url) is None:
        return "python"
    if not has_connector(spark) or source.options.selection.pattern is not None:
        return "python"
    try:
        connector_options(source.bootstrap, source.options.selection, source.options.client)
    except ConfigError:
        return "python"
    return "native"


def _native_can_batch(options: SourceOptions) -> bool:
    return options.start.lower() != "latest" and options.end.lower() != "earliest"


def _with_topic(frame: DataFrame, source: _Input) -> DataFrame:
    """The rows that tasks read `without_topic`, as RECORD."""
    if source.options.decoder is not None or not source.options.selection.is_single:
        return frame
    return frame.select(*(F.lit(source.options.topic).alias(n) if n == "topic" else n for n in RECORD.names))


def _through_connector(frame: DataFrame, options: SourceOptions) -> DataFrame:
    records = as_records(frame)
    return records if options.decoder is None else decoded_by(records, options.decoder)


def _given(name: str, value: object) -> dict[str, str]:
    return {} if value is None else {name: str(value)}
