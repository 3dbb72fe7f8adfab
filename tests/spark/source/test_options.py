"""What may be said to the format "penstock", and what is refused."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import ConfigError, UrlError
from penstock.model import Position
from penstock.serde import Topic
from penstock.spark.pipeline import Pipeline
from penstock.spark.sink.data_source import parse_sink_options
from penstock.spark.source.native import connector_options
from penstock.spark.source.origin import TopicSelection
from penstock.spark.source.positions import parse_position, position_text
from penstock.spark.source.read_options import client_options, client_texts, parse_options
from penstock.spark.values.decoding import Decoder

PLACE = {"url": "log:./data", "topic": "orders"}


def test_names_may_be_written_in_any_case() -> None:
    found = parse_options({"URL": "log:./data", "topic": "orders", "MAXRECORDSPERBATCH": "5"}, streaming=True)
    assert found.topic == "orders"
    assert found.max_records == 5


def test_the_folder_of_a_log_is_made_absolute() -> None:
    assert parse_options(PLACE, streaming=True).url == f"log:{Path.cwd() / 'data'}"


@pytest.mark.parametrize("name", ["url", "topic"])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"needs the option '{name}'"):
        parse_options({each: value for each, value in PLACE.items() if each != name}, streaming=True)


@pytest.mark.parametrize(
    ("options", "streaming", "says"),
    [
        ({"topik": "x"}, True, "no option 'topik'"),
        ({"maxRecordsPerBatch": "many"}, True, "'maxRecordsPerBatch' is 'many'; it must be a number"),
        ({"maxRecordsPerBatch": "0"}, True, "must be at least 1"),
        ({"maxBytesPerBatch": "-1"}, True, "must be at least 1"),
        ({"tasks": "0"}, False, "must be at least 1"),
        ({"mode": "tabel"}, False, "records or table"),
        ({"startingPosition": "yesterday"}, True, "'startingPosition' is 'yesterday'"),
        ({"startingPosition": "17"}, True, "'startingPosition' is '17'"),
        ({"startingPosition": '{"0": "x"}'}, True, "pointers are written as"),
        ({"startingPosition": '{"0": -2}'}, True, "pointers are written as"),
        ({"startingPosition": "{}"}, True, "pointers are written as"),
        ({"startingPosition": '{"0": 1'}, True, "pointers are written as"),
        ({"onExpired": "skip"}, True, "'onExpired' is 'skip'; it may be fail, earliest, latest"),
        ({"onExpired": '{"0": 1}'}, True, "'onExpired'"),
        ({"endingPosition": "latest"}, True, "does not apply to a stream"),
        ({"maxRecordsPerBatch": "5"}, False, "does not apply to a batch read"),
        ({"mode": "table"}, True, "mode=table is for batch reads"),
        ({"mode": "table", "startingPosition": "latest"}, False, "does not apply to mode=table"),
        ({"columns": "value,size"}, True, "no column 'size'"),
        ({"columns": "value,value"}, True, "contains a duplicate"),
        ({"decoder": "?"}, True, "not base64"),
        ({"decoder": "AAAA", "columns": "value"}, True, "cannot be combined with a decoder"),
        ({"client.timeout": "5"}, True, "no option 'timeout'"),
        ({"client.connect_timeout_s": "soon"}, True, "must be a number"),
        ({"client.librdkafka.bootstrap.servers": "a:1"}, True, "comes from the URL"),
        ({"url": "memory:x"}, True, "exists only in this process"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(options: dict[str, str], streaming: bool, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_options({**PLACE, **options}, streaming=streaming)


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(UrlError, match="did you mean kafka://"):
        parse_options({"url": "localhost:9092", "topic": "orders"}, streaming=True)


def test_options_of_the_client_come_back_as_they_were_given() -> None:
    given = {
        "client_id": "x",
        "acks": 1,
        "connect_timeout_s": 2.5,
        "librdkafka": {"security.protocol": "SSL", "enable.ssl.certificate.verification": False, "fetch.min.bytes": 7},
    }
    texts = {name.removeprefix("client."): text for name, text in client_texts(given, "log:x").items()}
    assert client_options(texts, "log:x") == {
        **given,
        "librdkafka": {
            "security.protocol": "SSL",
            "enable.ssl.certificate.verification": "false",
            "fetch.min.bytes": "7",
        },
    }


SECURED = "kafka://a:1?security.protocol=SASL_SSL&sasl.mechanism=PLAIN&sasl.username=me&sasl.password=secret"
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "me",
    "sasl.password": "secret",
}


def test_settings_of_a_url_go_to_tasks_and_to_the_connector_as_options_of_the_client() -> None:
    given = {"url": SECURED, "topic": "orders", "client.librdkafka.sasl.username": "you"}
    expected = {"librdkafka": {**LOGIN, "sasl.username": "you"}}
    source, sink = parse_options(given, streaming=True), parse_sink_options(given)
    assert (source.url, source.client) == (sink.url, sink.client) == ("kafka://a:1?config=", expected)
    assert "secret" not in f"{source!r} {sink!r}"
    told = connector_options("a:1", TopicSelection(("orders",)), source.client)
    assert told["kafka.security.protocol"] == "SASL_SSL"
    assert told["kafka.sasl.jaas.config"].endswith('required username="you" password="secret";')


def test_a_pipeline_and_its_dead_letters_have_the_settings_of_its_url(spark: SparkSession) -> None:
    pipeline = Pipeline("secured", SECURED, spark=spark)
    assert pipeline.client == {"librdkafka": LOGIN}
    assert "secret" not in f"{pipeline!r} {pipeline.url}"
    decoder = Decoder(Topic("orders", dict[str, int]), url=pipeline.url, group="g", client=pipeline.client)
    assert (decoder.url, decoder.client) == ("kafka://a:1?config=", pipeline.client)


def test_chosen_columns_are_the_schema() -> None:
    found = parse_options({**PLACE, "columns": "value, timestamp"}, streaming=True)
    assert found.schema().simpleString() == "struct<value:binary,timestamp:timestamp>"


@pytest.mark.parametrize(
    "start",
    [
        "earliest",
        "latest",
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        Position.at_time(1_234_567),
        Position.LATEST,
        {1: 4, 0: 17},
    ],
)
def test_a_position_survives_being_written_as_an_option(start: object) -> None:
    found = parse_position(position_text(start), "startingPosition", ["orders"])  # type: ignore[arg-type]
    if isinstance(start, datetime.datetime):
        assert found == Position.at_time(start)
    elif isinstance(start, str):
        assert str(found) == start
    elif isinstance(start, dict):
        assert found == {("orders", partition): pointer for partition, pointer in start.items()}
    else:
        assert found == start


def test_one_pointer_for_all_partitions_is_refused() -> None:
    with pytest.raises(ConfigError, match="one for each"):
        position_text(Position.at_pointer(4))


def test_the_file_that_tells_whose_folder_it_is_has_the_name_that_the_broker_gives_it() -> None:
    from penstock.broker.broker import CLUSTER_FILE
    from penstock.spark.source import origin

    assert origin.CLUSTER_FILE == CLUSTER_FILE
