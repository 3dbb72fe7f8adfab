"""Streams as DataFrames: `read_stream`, `read_batch` and `read_table`, for those who write plain Spark.

Two engines read the same columns. "python" is Penstock's own source, the format "penstock": it reads any stream, and an
embedded log on the same host straight from its files. "native" is Spark's own Kafka connector, for `kafka:` and `log:`
URLs, when its jar is there (`penstock spark jars` fetches it); real-time mode needs it. "auto" takes the
files for `log:`, which need no network and no second copy of the records; the connector for `kafka:` when it is there,
as it reads over the network in the JVM; and the python engine for what only that one can do (a limit in bytes, going on
at "latest" or at a time when records have expired, other streams). A query of the python engine takes longer to start,
as Spark starts Python processes to plan it; `benchmarks/spark_source.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError, ConnectorMissingError
from penstock.spark.columns import RECORD
from penstock.spark.run_settings import ENGINES, Engine
from penstock.spark.sessions import has_connector
from penstock.spark.source import PenstockDataSource
from penstock.spark.source.held_brokers import held_broker
from penstock.spark.source.native import (
    as_records,
    connector_options,
    decoded_by,
    loss_options,
    position_options,
)
from penstock.spark.source.options import Decoder, SourceOptions, client_texts, parse_options, pickled
from penstock.spark.source.positions import Start, position_text
from penstock.spark.source.topic_view import open_topic
from penstock.spark.worker_environment import settle_source
from penstock.streams.url import KafkaUrl, LogUrl, parse_url

FORMAT = PenstockDataSource.name()


def register(spark: SparkSession) -> None:
    """Make the format "penstock" known to a session. Where Penstock is installed, Spark finds it by itself."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    if not sources.dataSourceExists(FORMAT):  # Spark warns of each that takes the place of another
        spark.dataSource.register(PenstockDataSource)
    settle_source(spark, sources.lookupDataSource(FORMAT))


def read_stream(
    spark: SparkSession,
    url: str,
    topic: str,
    *,
    engine: Engine = "auto",
    start: Start = "earliest",
    max_records_per_batch: int | None = None,
    max_bytes_per_batch: int | None = None,
    on_expired: str = "fail",
    decoder: Decoder | None = None,
    client: Mapping[str, Any] | None = None,
) -> DataFrame:
    """A topic as a streaming DataFrame of RECORD, or of the decoder's columns.

    `start` is where a query without a checkpoint begins: "earliest", "latest", a time, or a pointer for each partition.
    A batch takes at most `max_records_per_batch` records, and about `max_bytes_per_batch` bytes, a fair part of each
    partition; without either it takes all there is. `on_expired` says what happens when the next records are gone:
    "fail", or go on at "earliest", "latest" or a time. `client` has options of `penstock.connect`.

    Raises ConfigError, UrlError, BrokerUnavailableError and UnknownTopicError at once; what goes wrong later ends the
    query with an error of the same names.
    """
    texts = {
        **_given("maxRecordsPerBatch", max_records_per_batch),
        **_given("maxBytesPerBatch", max_bytes_per_batch),
        "onExpired": on_expired,
        "startingPosition": position_text(start),
    }
    place = _place(spark, url, topic, texts, decoder, client, streaming=True)
    native_can = max_bytes_per_batch is None and on_expired in ("fail", "earliest")
    if _engine(spark, place, engine, native_can=native_can) == "python":
        register(spark)
        return _with_topic(spark.readStream.format(FORMAT).options(**place.without_topic()).load(), place)
    if max_bytes_per_batch is not None:
        raise ConfigError('the Kafka connector knows no limit in bytes: use max_records_per_batch, or engine="python"')
    options = {
        **connector_options(place.bootstrap, topic, place.options.client),
        **position_options(topic, place.options.start, "startingPosition", streaming=True),
        **loss_options(on_expired),
        **_given("maxOffsetsPerTrigger", max_records_per_batch),
    }
    return _through_connector(spark.readStream.format("kafka").options(**options).load(), place.options)


def read_batch(
    spark: SparkSession,
    url: str,
    topic: str,
    *,
    engine: Engine = "auto",
    start: Start = "earliest",
    end: Start = "latest",
    decoder: Decoder | None = None,
    client: Mapping[str, Any] | None = None,
) -> DataFrame:
    """The records of a topic between two positions, as they are when the query is planned. See `read_stream`."""
    texts = {"startingPosition": position_text(start), "endingPosition": position_text(end)}
    place = _place(spark, url, topic, texts, decoder, client, streaming=False)
    if _engine(spark, place, engine, native_can=_native_can_batch(place.options)) == "python":
        register(spark)
        return _with_topic(spark.read.format(FORMAT).options(**place.without_topic()).load(), place)
    options = {
        **connector_options(place.bootstrap, topic, place.options.client),
        **position_options(topic, place.options.start, "startingPosition", streaming=False),
        **position_options(topic, place.options.end, "endingPosition", streaming=False),
    }
    return _through_connector(spark.read.format("kafka").options(**options).load(), place.options)


def read_table(
    spark: SparkSession,
    url: str,
    topic: str,
    *,
    decoder: Decoder | None = None,
    client: Mapping[str, Any] | None = None,
) -> DataFrame:
    """A keyed topic as a table: the latest value of each key, without keys whose latest value is null.

    Joined to a stream it is as fresh as the start of each micro-batch's tasks, without a restart: Python workers keep
    the table between batches, and read what is new. Records without a key are left out. Partitions that the topic gets
    later are seen by queries that are started later.
    """
    place = _place(spark, url, topic, {"mode": "table"}, decoder, client, streaming=False)
    register(spark)
    return spark.read.format(FORMAT).options(**place.texts).load()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to read, checked: the stream answered, and the topic is there."""

    options: SourceOptions
    texts: dict[str, str]
    """The options of the format."""
    bootstrap: str
    """The address for Kafka's clients, where it is Kafka or an embedded log."""

    def without_topic(self) -> dict[str, str]:
        """The options for tasks that do not send the same name with every record: Spark knows it."""
        if self.options.decoder is not None:
            return self.texts
        return {**self.texts, "columns": ",".join(name for name in RECORD.names if name != "topic")}


def _place(
    spark: SparkSession,
    url: str,
    topic: str,
    more: Mapping[str, str],
    decoder: Decoder | None,
    client: Mapping[str, Any] | None,
    *,
    streaming: bool,
) -> _Place:
    texts = {"url": url, "topic": topic, **more, **client_texts(client or {})}
    if decoder is not None:
        texts["decoder"] = pickled(decoder)
    if more.get("mode") != "table":
        texts["tasks"] = str(spark.sparkContext.defaultParallelism)
    options = parse_options(texts, streaming=streaming)
    texts |= {"url": options.url, **client_texts(options.client)}
    where = parse_url(options.url)
    bootstrap = where.bootstrap if isinstance(where, KafkaUrl) else ""
    if isinstance(where, LogUrl):
        bootstrap = held_broker(options.url, options.client).bootstrap
    view = open_topic(options.url, options.topic, options.client)
    try:
        view.describe()
    finally:
        view.close()
    return _Place(options, texts, bootstrap)


def _engine(spark: SparkSession, place: _Place, asked: Engine, *, native_can: bool) -> Engine:
    if asked not in ENGINES:
        raise ConfigError(f"there is no engine {asked!r}; choose {', '.join(ENGINES)}")
    if asked == "native":
        if not place.bootstrap:
            raise ConfigError(f'{place.options.url} is not Kafka\'s: the Kafka connector cannot read it; use "python"')
        if not has_connector(spark):
            raise ConnectorMissingError(
                "Spark's Kafka connector is not on the class path: run `penstock spark jars` once and make the session "
                'with penstock.spark.session(), or use engine="python"'
            )
        return "native"
    if asked == "python" or not native_can or not isinstance(parse_url(place.options.url), KafkaUrl):
        return "python"
    if not has_connector(spark):
        return "python"
    try:
        connector_options(place.bootstrap, place.options.topic, place.options.client)
    except ConfigError:
        return "python"
    return "native"


def _native_can_batch(options: SourceOptions) -> bool:
    return options.start.lower() != "latest" and options.end.lower() != "earliest"


def _with_topic(frame: DataFrame, place: _Place) -> DataFrame:
    """What tasks read `without_topic`, as RECORD."""
    if place.options.decoder is not None:
        return frame
    return frame.select(*(F.lit(place.options.topic).alias(n) if n == "topic" else n for n in RECORD.names))


def _through_connector(frame: DataFrame, options: SourceOptions) -> DataFrame:
    records = as_records(frame)
    return records if options.decoder is None else decoded_by(records, options.decoder)


def _given(name: str, value: object) -> dict[str, str]:
    return {} if value is None else {name: str(value)}
