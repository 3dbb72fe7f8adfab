"""Tables of PostgreSQL as the target of real-time mode: rows are committed one by one, in milliseconds.

Exactly-once holds for queries without state. Each transaction also moves the position of the source partition, so that
rows that come again after a restart are skipped: the table `penstock_spark_positions` has, for each partition that a
query reads, the pointer of the record that its last row was made from, and the number of that row among those of the
record. Such a query always writes this way, also in a run with `once`.
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.databases.statements import listed, names_in, quoted, upsert_tail
from penstock.errors import CheckpointMismatchError, ConfigError
from penstock.model import Guarantee
from penstock.spark.errors.origins import origin_names
from penstock.spark.jvm import jvm_of
from penstock.spark.realtime.planning import RealTimePlan, planned
from penstock.spark.run.plans import analysed, stateful_operators, topics_read
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.sink.sql.columns import Kind, SqlColumn, columns_of
from penstock.spark.sink.sql.database import POSITIONS
from penstock.spark.sink.sql.delivery import provide_table
from penstock.spark.sink.sql.postgres import PostgresDatabase
from penstock.spark.sink.sql.table import SqlTable

_DRIVER: Final = "org.postgresql.Driver"
_CONNECT_S: Final = 10
_ANSWER_S: Final = 60
_PASSED_ON: Final = ("user", "password", "sslmode", "sslrootcert", "sslcert", "sslkey", "options", "application_name")
"""Settings of a URL that PostgreSQL's Java driver has, too."""
_JAVA_NAMES: Final = {"application_name": "ApplicationName"}


_ORIGIN: Final = ("penstock_topic", "penstock_partition", "penstock_pointer")
"""The columns behind those of the table, for the positions."""
_PASSING: Final = ("Project", "Filter", "SubqueryAlias", "EventTimeWatermark", "Generate")
"""Operators above which a row is still made from the record of the row below."""


def check(frame: DataFrame, target: SqlTable) -> list[str]:
    """The reasons why this frame cannot be written to this table in real-time mode; empty if it can."""
    if target.url.startswith("sqlite:"):
        return ["it writes to tables of PostgreSQL, not of SQLite"]
    if target.deleted is not None:
        return ["a table whose rows are deleted by a column needs batches: omit deleted="]
    plan = planned(frame)
    if plan.reasons or target.guarantee is Guarantee.AT_LEAST_ONCE:
        return list(plan.reasons)
    return [f"{why}, so that rows are delivered at least once: set guarantee" for why in _why_repeated(frame, plan)]


def writer_of(frame: DataFrame, target: SqlTable, name: str, checkpoint: str) -> DataStreamWriter:
    """The writer of a query into this table, without its trigger.

    Raises ConfigError if the driver is missing, or the URL has settings that it does not have, and
    CheckpointMismatchError if the query has delivered batches to the table before.
    """
    spark = frame.sparkSession
    is_exact = target.guarantee is Guarantee.EXACTLY_ONCE
    url, settings = java_url(target.url)
    _require_driver(frame)
    columns = columns_of(frame.schema, target.label)
    _provide(target, columns, StateFolder(checkpoint, spark), name)
    rows = frame.select(*(_text(frame, column) for column in columns))
    if is_exact:
        with_origin = _with_origin(rows)
        assert with_origin is not None, "`check` has found it"
        rows = with_origin
    names = [column.name for column in columns]
    insert = (
        f"INSERT INTO {quoted(*names_in(target.table))} ({listed(names)}) VALUES ({', '.join('?' * len(names))})"
        f"{upsert_tail(names, target.keys)}"
    )
    writer = rows.writeStream.queryName(name).outputMode("update").option("checkpointLocation", checkpoint)
    writer._jwrite.foreach(jvm_of(spark).penstock.SqlWriter(url, settings, insert, len(names), is_exact))
    return writer


def java_url(url: str) -> tuple[str, dict[str, str]]:
    """The URL and the settings for PostgreSQL's Java driver."""
    given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    host = given.pop("host", None) or os.environ.get("PGHOST") or "localhost"
    port = given.pop("port", None) or os.environ.get("PGPORT") or "5432"
    given.setdefault("user", os.environ.get("PGUSER") or getpass.getuser())
    if password := os.environ.get("PGPASSWORD"):
        given.setdefault("password", password)
    database = given.pop("dbname", None) or os.environ.get("PGDATABASE") or given["user"]
    unknown = sorted(given.keys() - set(_PASSED_ON))
    if unknown:
        raise ConfigError(f"real-time mode does not support the setting {unknown[0]!r} of a PostgreSQL URL: omit it")
    if "," in host or host.startswith("/"):
        raise ConfigError("real-time mode connects to one host of PostgreSQL by TCP: name it in the URL")
    where = f"[{host}]" if ":" in host else host
    settings = {_JAVA_NAMES.get(name, name): value for name, value in given.items()}
    settings |= {"connectTimeout": str(_CONNECT_S), "socketTimeout": str(_ANSWER_S), "tcpKeepAlive": "true"}
    return f"jdbc:postgresql://{where}:{port}/{quote(database, safe='')}", settings


def _why_repeated(frame: DataFrame, plan: RealTimePlan) -> list[str]:
    """Why rows that come again cannot be told from new ones."""
    reasons = []
    if plan.shuffles or stateful_operators(frame):
        reasons.append("it shuffles rows or keeps state")
    topics = topics_read(frame)
    if len(topics) != len(set(topics)):
        reasons.append("it reads a topic twice")
    if not analysed(frame).deterministic():
        reasons.append("it has a function that gives other values for the same row, such as rand()")
    if not reasons and _with_origin(frame) is None:
        reasons.append(
            "the record of each row is unknown behind a join or union: keep its columns topic, partition and pointer"
        )
    return reasons


def _with_origin(frame: DataFrame) -> DataFrame | None:
    """The frame with the columns `_ORIGIN`, taken from where the columns of the record are first; None if unknown."""
    found = _carried(frame, analysed(frame))
    if found is None:
        return None
    plan, attributes = found
    return _frame(frame, _project(frame, [*_all(analysed(frame).output()), *attributes], plan))


def _carried(frame: DataFrame, plan: Any) -> tuple[Any, list[Any]] | None:
    """The plan with the columns `_ORIGIN` behind its own, and these."""
    children = _all(plan.children())
    kind = str(plan.getClass().getSimpleName())
    below = _carried(frame, children[0]) if kind in _PASSING else None
    if below is not None:
        made, attributes = below
        if kind == "Project":
            return _project(frame, [*_all(plan.projectList()), *attributes], made), attributes
        return plan.withNewChildren(_seq(frame, [made])), attributes
    rows = _frame(frame, plan)
    names = origin_names(rows.columns)
    if names is None:
        return None
    partition, pointer, topic = (rows[f"`{name}`"] for name in names)
    columns = [topic.cast("string"), partition.cast("int"), pointer.cast("long")]
    made = analysed(rows.withColumns(dict(zip(_ORIGIN, columns, strict=True))))
    return made, _all(made.output())[-len(_ORIGIN) :]


def _project(frame: DataFrame, columns: Sequence[Any], below: Any) -> Any:
    return jvm_of(frame.sparkSession).org.apache.spark.sql.catalyst.plans.logical.Project(_seq(frame, columns), below)


def _frame(frame: DataFrame, plan: Any) -> DataFrame:
    spark = frame.sparkSession
    return DataFrame(jvm_of(spark).org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def _seq(frame: DataFrame, items: Sequence[Any]) -> Any:
    return jvm_of(frame.sparkSession).PythonUtils.toSeq(list(items))


def _all(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _text(frame: DataFrame, column: SqlColumn) -> Column:
    """A column as text that PostgreSQL parses."""
    value = frame[f"`{column.name}`"]
    if column.kind is Kind.JSON:
        text = F.to_json(value)
    elif column.kind is Kind.BYTES:
        text = F.concat(F.lit("\\x"), F.hex(value))
    elif column.kind is Kind.TIMESTAMP_TZ:
        text = F.date_format(value, "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")
    else:
        text = value.cast("string")
    return text.alias(column.name)


def _require_driver(frame: DataFrame) -> None:
    jvm = jvm_of(frame.sparkSession)
    try:
        jvm.java.lang.Class.forName(_DRIVER, True, jvm.java.lang.Thread.currentThread().getContextClassLoader())
    except Py4JJavaError as error:
        raise ConfigError(
            "PostgreSQL's Java driver is not on Spark's class path, which real-time mode needs: run "
            "`penstock spark jars --force` once and create the session again"
        ) from error


def _provide(target: SqlTable, columns: Sequence[SqlColumn], checkpoint: StateFolder, name: str) -> None:
    """Create the table and that of the positions, or check the table."""
    database = PostgresDatabase(target.url)
    try:
        with database.transaction() as transaction:
            provide_table(
                database, transaction, names_in(target.table), columns, target.keys, target.create, target.label
            )
            transaction.create_marks()
            transaction.execute(
                f"CREATE TABLE IF NOT EXISTS {POSITIONS} (query text, topic text, part integer, "
                "pointer bigint NOT NULL, ordinal integer NOT NULL, PRIMARY KEY (query, topic, part))"
            )
            query = json.loads((checkpoint.read("metadata") or "{}").splitlines()[-1]).get("id")
            if query is not None and transaction.mark(f"{query}/{target.label}") is not None:
                raise CheckpointMismatchError(
                    f"query {name!r} has delivered batches to {target.label}, and its last one may come again in "
                    "real-time mode: rename the query to start over, or keep running it in batches"
                )
    finally:
        database.close()
