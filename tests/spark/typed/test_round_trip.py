"""What the library sends, Spark decodes and encodes again, and the library reads: the same."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.serde import AvroSerde, Topic
from penstock.spark.source.native import decoded_by
from penstock.spark.values.columns import RECORD, WRITTEN
from penstock.spark.values.decoding import Decoder
from penstock.spark.values.encoding import encode_frame
from penstock.spark.values.typed_encoding import Encoder
from tests.spark.typed.proto import visit_class
from tests.spark.typed.records import record_rows
from tests.spark.typed.test_types import AVRO
from tests.spark.typed.values import INTEGERS, KINDS, LINES, MOMENTS, TEXTS, Line

URL = "kafka://127.0.0.1:1"


def there_and_back(topic: Topic[Any], values: list[Any]) -> list[Any]:
    """Without Spark: what the tasks do, one after the other."""
    decoder = Decoder(topic, url=URL, dead_letters=None, group="g")
    decoded = decoder.decode(record_rows([topic.new_record(value, key=b"k").value for value in values]))
    names = decoded.schema.names[: -len(RECORD) + 1]
    columns = [decoded.column(name) for name in names]
    rows = pa.StructArray.from_arrays(columns, names=names)
    others = [pa.nulls(len(values)) for _ in WRITTEN.names[2:]]
    shaped = pa.RecordBatch.from_arrays([pa.array([b"k"] * len(values), pa.binary()), rows, *others], WRITTEN.names)
    encoded = Encoder(topic, makes_key=False).encode(shaped)
    return [topic.decode(data) for data in encoded.column("value").to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_value_of_any_kind_comes_back(kind: str, data: st.DataObject) -> None:
    form, strategy = KINDS[kind]
    values = data.draw(st.lists(strategy, min_size=1, max_size=5))
    assert there_and_back(Topic("t", form), values) == values


@settings(max_examples=30, deadline=None)
@given(values=st.lists(LINES, min_size=1, max_size=5))
@pytest.mark.parametrize("serde", ["json", "msgpack", "avro"])
def test_whatever_the_serde(serde: str, values: list[Line]) -> None:
    assert there_and_back(Topic("t", Line, serde=serde), values) == values


@pytest.mark.parametrize(
    ("form", "values"),
    [(int, [1, -5]), (str, ["", "ž"]), (bytes, [b"", b"\xff"]), (list[float], [[], [1.5]]), (None, [{"a": [1]}, 7])],
)
def test_values_without_fields_come_back(form: Any, values: list[Any]) -> None:
    assert there_and_back(Topic("t", form, serde="json" if form is None else None), values) == values


def test_avro_dicts_come_back() -> None:
    topic: Topic[Any] = Topic("t", serde=AvroSerde(AVRO))
    at = datetime.datetime(2026, 11, 15, 8, 0, 0, 123_000, tzinfo=datetime.UTC)
    trade = {
        "id": 7,
        "price": Decimal("12.50"),
        "at": at,
        "side": "BUY",
        "other": None,
        "parts": [{"a": 0.5}, {}],
        "hash": b"1234",
        "where": {"x": 1.5},
        "home": {"x": 2.5},
    }
    assert there_and_back(topic, [trade]) == [trade]


@settings(max_examples=40, deadline=None)
@given(
    page=TEXTS,
    kind=st.integers(0, 5),
    at=st.none() | MOMENTS,
    took=st.none() | st.timedeltas(datetime.timedelta(days=-999), datetime.timedelta(days=999)),
    big=st.integers(0, 2**64 - 1),
    maybe=st.none() | INTEGERS,
    wrapped=st.none() | TEXTS,
    counts=st.dictionaries(TEXTS, INTEGERS, max_size=3),
    port=st.none() | st.integers(0, 9),
)
def test_protobuf_messages_come_back(
    page: str,
    kind: int,
    at: datetime.datetime | None,
    took: datetime.timedelta | None,
    big: int,
    maybe: int | None,
    wrapped: str | None,
    counts: dict[str, int],
    port: int | None,
) -> None:
    visit = visit_class()(page=page, kind=kind, big=big, maybe=maybe, counts=counts, tags=list(counts))
    if at is not None:
        visit.at.FromDatetime(at)
    if took is not None:
        visit.took.FromTimedelta(took)
    if wrapped is not None:
        visit.wrapped.value = wrapped
        visit.wrapped.SetInParent()
    if port is not None:
        getattr(visit, "from").port = port
        getattr(visit, "from").SetInParent()
    assert there_and_back(Topic("t", visit_class()), [visit]) == [visit]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_through_spark_a_value_of_any_kind_comes_back(kind: str, data: st.DataObject, spark: SparkSession) -> None:
    form, strategy = KINDS[kind]
    topic: Topic[Any] = Topic("t", form)
    values = data.draw(st.lists(strategy, min_size=1, max_size=20))
    records = record_rows([*(topic.new_record(value).value for value in values), None])
    frame = spark.createDataFrame(pa.Table.from_batches([records]), RECORD)
    decoded = decoded_by(frame, pickle.dumps(Decoder(topic, url=URL, dead_letters=None, group="g")))
    written = encode_frame(decoded.orderBy("pointer"), topic).collect()
    assert [topic.decode(None if row["value"] is None else bytes(row["value"])) for row in written] == [*values, None]
