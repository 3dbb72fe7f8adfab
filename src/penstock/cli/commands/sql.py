"""`penstock sql`: query topics with SQL."""

from __future__ import annotations

import csv
import sys
import threading
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final

import msgspec
import typer

from penstock.cli.modules import topics_of
from penstock.cli.options import DEFAULT_URL, Url, examples
from penstock.cli.output import plain_json, say
from penstock.cli.quantities import seconds, size_bytes
from penstock.cli.stream import open_connection
from penstock.cli.tables import print_table
from penstock.errors import PenstockError
from penstock.querying.cells import cell_text, is_number, json_cell, rows_of
from penstock.querying.database import MEMORY_LIMIT, QueryResult, TopicDatabase

app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock sql 'show tables'",
    'penstock sql "select customer, sum(cents) from orders group by 1"',
    'penstock sql --types shop.topics "select customer, sum(cents) from orders group by 1"',
    'penstock sql "from orders where timestamp > now() - interval 1 hour" --format csv > orders.csv',
    "penstock sql \"from latest('users')\"",
    "penstock sql --url log:./data",
)
_MOST_SHOWN: Final = 1_000
_PROMPT: Final = "sql> "
_CONTINUED: Final = "...> "
_END_WORDS: Final = ("exit", "quit", r"\q")


class QueryFormat(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"


class OnUndecodable(StrEnum):
    null = "null"
    error = "error"


@app.command("sql", epilog=EXAMPLES)
def sql(
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="The query. Omitted: a prompt, or the query from standard input."),
    ] = None,
    url: Url = DEFAULT_URL,
    output: Annotated[
        QueryFormat, typer.Option("--format", help="table; json: one object per line; csv.")
    ] = QueryFormat.table,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", min=0, help=f"Print at most this many rows.  [default: {_MOST_SHOWN} of a table]"
        ),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Give up after this long, such as 30s.")
    ] = None,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="The most memory that DuckDB may use, such as 4GB.")
    ] = MEMORY_LIMIT,
    undecodable: Annotated[
        OnUndecodable,
        typer.Option(help="What becomes of values that cannot be decoded: null with a warning, or error."),
    ] = OnUndecodable.null,
    types: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE[:NAME]",
            help="A module whose variables that are a penstock.Topic say the types of topics, or one of them. May be "
            "repeated.",
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A schema registry that has the schemas of topics: Avro or JSON Schema."),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Keep closed segments of topics on this machine as Parquet files, up to this size, such as 10GB.",
        ),
    ] = None,
) -> None:
    """Query topics with SQL, by DuckDB. Queries only read.

    A topic is a table with the columns partition, "offset", timestamp, key, value and headers, and a column for each
    field of its values, if they are JSON objects or have a known type. latest('TOPIC') has the newest row of every key.
    "show tables" lists the topics, "describe TOPIC" the columns of one.
    """
    timeout_s = None if timeout is None else seconds(timeout, "--timeout")
    most = _MOST_SHOWN if limit is None and output is QueryFormat.table else limit
    is_prompt = query is None and sys.stdin.isatty()
    if query is None and not is_prompt:
        query = sys.stdin.read()
    with (
        open_connection(url) as stream,
        TopicDatabase(
            stream,
            url,
            types=[topic for each in types or () for topic in topics_of(each)],
            registry=registry,
            timeout_s=timeout_s,
            memory_limit=memory,
            cache_bytes=None if cache is None else size_bytes(cache, "--cache"),
            undecodable=undecodable.value,
        ) as database,
    ):
        if query is not None:
            _print(_answer(database, query, most), output)
            return
        say(f'Queries end with ";". {_END_WORDS[0]} or Ctrl-D ends.')
        for each in _asked():
            try:
                _print(_answer(database, each, most), output)
            except PenstockError as error:
                say(str(error))
            except KeyboardInterrupt:
                say("the query was cancelled")


def _asked() -> Iterator[str]:
    """The queries that are typed, each up to a semicolon."""
    lines: list[str] = []
    while True:
        try:
            line = input(_CONTINUED if lines else _PROMPT)
        except EOFError:
            say("")
            return
        except KeyboardInterrupt:
            say("")
            lines.clear()
            continue
        if not lines and line.strip().rstrip(";").lower() in _END_WORDS:
            return
        if not lines and not line.strip():
            continue
        lines.append(line)
        if line.rstrip().endswith(";"):
            yield "\n".join(lines)
            lines.clear()


def _answer(database: TopicDatabase, query: str, limit: int | None) -> QueryResult:
    """Run a query. An interrupt cancels it: DuckDB itself would not notice one while it computes."""
    answers: list[QueryResult | BaseException] = []

    def run() -> None:
        try:
            answers.append(database.run(query, limit=limit))
        except BaseException as error:  # raised below, in the thread that waits
            answers.append(error)

    thread = threading.Thread(target=run, name="penstock-sql", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
    except BaseException:
        database.cancel()
        thread.join()
        raise
    answer = answers[0]
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _print(result: QueryResult, output: QueryFormat) -> None:
    table = result.table
    if output is QueryFormat.json:
        for row in rows_of(table):
            document = dict(zip(table.column_names, map(json_cell, row), strict=True))
            typer.echo(plain_json(msgspec.json.encode(document).decode()))
    elif output is QueryFormat.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(table.column_names)
        for row in rows_of(table):
            writer.writerow("" if cell is None else cell_text(cell) for cell in row)
    elif table.column_names[:1] == ["explain_key"]:
        typer.echo("\n".join(str(row[1]) for row in rows_of(table)))
    else:
        numbers = [field.name for field in table.schema if is_number(field.type)]
        print_table(
            table.column_names,
            ([None if cell is None else cell_text(cell) for cell in row] for row in rows_of(table)),
            numbers,
        )
        rows = "1 row" if table.num_rows == 1 else f"{table.num_rows:,} rows"
        more = ": there are more, see --limit" if result.is_cut else ""
        cached = f" and {result.records_cached:,} in cached segments" if result.records_cached else ""
        say(f"{rows}{more} ({result.records_read:,} records read{cached} in {result.took_s:.2f} s)")
    for warning in result.warnings:
        say(f"warning: {warning}")
