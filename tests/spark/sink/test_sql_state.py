"""State in a table that queries share: nothing is lost or counted twice, whoever else updates the same rows."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError, DeliveryError, FencedError, SchemaMismatchError
from penstock.spark import SqlState
from penstock.spark.sink.refused_rows import RefusedRows
from penstock.spark.sink.sql import postgres, sqlite
from penstock.spark.sink.target import Delivered, Delivery, QueryIdentity
from penstock.spark.values.undecodable import Letters
from tests.seeds import seed_of
from tests.spark.sink.databases import Killed, Rows, killing

BOOKINGS = "account string, cents bigint, pointer bigint"
Open = Callable[..., Delivery]


@dataclasses.dataclass
class Balance:
    account: str
    cents: int | None
    last: int | None = None


def book(balance: Balance | None, bookings: Sequence[Row]) -> Balance:
    """The balance, and the last booking."""
    cents = sum(booking.cents for booking in bookings) + (balance.cents or 0 if balance is not None else 0)
    return Balance(bookings[0].account, cents, bookings[-1].cents)


def or_close(balance: Balance | None, bookings: Sequence[Row]) -> Balance | None:
    after = book(balance, bookings)
    return after if after.cents else None


@pytest.fixture
def balances(database: str) -> SqlState:
    return SqlState(database, "balances", or_close, Balance, key="account")


def test_rows_are_folded_into_the_table_and_a_repeated_batch_is_not(
    spark: SparkSession, balances: SqlState, rows: Rows, open_target: Open
) -> None:
    rng = random.Random(seed_of())
    model: Counter[str] = Counter()
    numbers = itertools.count()
    delivery = open_target(balances)
    for batch in range(6):
        made = [(rng.choice("abcd"), rng.randrange(-2, 3), next(numbers)) for _ in range(6)]
        frame = spark.createDataFrame(rng.sample(made, len(made)), BOOKINGS)
        balances.check(frame.schema, "append")
        if batch % 2:
            delivery = open_target(balances)
        assert delivery.deliver(frame, batch) == Delivered(6)
        assert delivery.deliver(frame, batch) == Delivered(6, repeated=True)
        for account, cents, _ in made:
            model[account] += cents
        found = {account: (cents, last) for account, cents, last in rows("SELECT * FROM balances")}
        assert {account: cents for account, (cents, _) in found.items()} == {k: v for k, v in model.items() if v}
        for account, last in {account: cents for account, cents, _ in made}.items():
            assert account not in found or found[account][1] == last, "rows are given in the order of their pointers"


@pytest.mark.timeout(300)
def test_two_queries_that_die_while_they_update_one_table_are_exact(
    spark: SparkSession,
    balances: SqlState,
    identity: QueryIdentity,
    rows: Rows,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(seed_of())
    steps = ["lock_rows", "delete_rows", "write", "set_mark"]
    dying = threading.local()
    for module in (postgres, sqlite):
        for step in steps:
            _die_after(monkeypatch, module._Transaction, step, dying)
    batches = {
        query: [[(rng.choice("abcdefgh"), rng.randrange(-2, 3), n) for n in range(20)] for _ in range(6)]
        for query in ("first", "second")
    }
    deaths = {query: [rng.choice([None, *steps]) for _ in of_it] for query, of_it in batches.items()}
    errors: list[BaseException] = []

    def run(query: str) -> None:
        own = replace(identity, query=query, id=f"{identity.id}-{query}", staging=f"{identity.staging}-{query}")
        try:
            delivery = balances.open(own)
            for batch, made in enumerate(batches[query]):
                frame = spark.createDataFrame(made, BOOKINGS)
                dying.step = deaths[query][batch]
                try:
                    delivery.deliver(frame, batch)
                except Killed:
                    delivery.close()
                    delivery = balances.open(own)
                dying.step = None
                delivery.deliver(frame, batch)
            delivery.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[query]) for query in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert not errors
    wanted: Counter[str] = Counter()
    for made in itertools.chain(*batches.values()):
        for account, cents, _ in made:
            wanted[account] += cents
    assert dict(rows("SELECT account, cents FROM balances")) == {key: value for key, value in wanted.items() if value}


def _die_after(monkeypatch: pytest.MonkeyPatch, transaction: Any, step: str, dying: threading.local) -> None:
    real = getattr(transaction, step)

    def stepping(self: Any, *given: Any) -> Any:
        outcome = real(self, *given)
        if getattr(dying, "step", None) == step:
            raise Killed
        return outcome

    monkeypatch.setattr(transaction, step, stepping)


def test_a_missing_row_is_locked_too(
    spark: SparkSession, balances: SqlState, identity: QueryIdentity, rows: Rows, open_target: Open
) -> None:
    """Both queries find no row for the account, and the second waits for what the first makes of it."""
    first = open_target(balances)
    first.deliver(spark.createDataFrame([("x", 1, 0)], BOOKINGS), 0)
    second = balances.open(replace(identity, query="second", id=f"{identity.id}-second"))
    is_inside, others = threading.Event(), []

    def slow(balance: Balance | None, bookings: Sequence[Row]) -> Balance:
        if not is_inside.is_set():
            is_inside.set()
            others.append(threading.Thread(target=second.deliver, args=[frame, 0]))
            others[0].start()
            others[0].join(0.5)
            assert others[0].is_alive()
        return book(balance, bookings)

    frame = spark.createDataFrame([("new", 5, 0), ("x", 1, 1)], BOOKINGS)
    first._update = slow  # type: ignore[attr-defined]
    first.deliver(frame, 1)
    others[0].join(60)
    second.close()
    assert sorted(rows("SELECT account, cents FROM balances")) == [("new", 10), ("x", 3)]


def test_every_type_of_state_comes_back_as_it_was(
    spark: SparkSession, database: str, rows: Rows, open_target: Open
) -> None:
    row = Row(
        t='a, "b"\'',
        day=datetime.date(2025, 3, 1),
        at=datetime.datetime(2025, 3, 1, 12, 0, 0, 250_000, tzinfo=datetime.UTC),
        b=True,
        i=-5,
        d=0.1,
        n=decimal.Decimal("1234567890.7891"),
        wall=datetime.datetime.fromisoformat("2025-03-01T12:00:00"),
        raw=b"\x00\xff",
        none=None,
    )
    schema = (
        "t string, day date, at timestamp, b boolean, i bigint, d double, n decimal(20,4), wall timestamp_ntz, "
        "raw binary, none string"
    )
    seen: list[Any] = []

    def keep(state: Row | None, new: Sequence[Row]) -> Row:
        seen.append((state, new))
        return Row(**{name: value for name, value in new[0].asDict().items() if name != "many"})

    frame = spark.createDataFrame([row], schema)
    target = SqlState(database, "types", keep, frame.schema, key=["t", "day", "at"])
    delivery = open_target(target)
    delivery.deliver(frame.withColumn("many", F.array(F.lit(1))), 0)
    target.check(frame.schema, "append")
    delivery.deliver(frame, 1)
    assert [state for state, _ in seen] == [None, row]
    assert seen[0][1] == [(*row, [1])]
    assert rows("SELECT count(*) FROM types") == [(1,)]


@pytest.mark.parametrize("step", ["lock_rows", "write", "set_mark"])
def test_a_driver_that_dies_inside_leaves_nothing_and_an_older_run_is_fenced(
    spark: SparkSession,
    balances: SqlState,
    rows: Rows,
    open_target: Open,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    first = open_target(balances)
    frame = spark.createDataFrame([("a", 5, 0), ("b", 7, 1)], BOOKINGS)
    first.deliver(frame, 0)
    killing(monkeypatch, step)
    with pytest.raises(Killed):
        first.deliver(frame, 1)
    monkeypatch.undo()
    assert sorted(rows("SELECT account, cents FROM balances")) == [("a", 5), ("b", 7)]
    second = open_target(balances)
    with pytest.raises(FencedError):
        first.deliver(frame, 1)
    assert second.deliver(frame, 1) == Delivered(2)
    assert sorted(rows("SELECT account, cents FROM balances")) == [("a", 10), ("b", 14)]


def test_a_function_that_fails_names_the_key_and_changes_nothing(
    spark: SparkSession, database: str, rows: Rows, open_target: Open
) -> None:
    def fail(balance: Balance | None, bookings: Sequence[Row]) -> Any:
        wrong = {"b": 1 / bookings[0].cents, "c": Balance("x", 1), "d": Balance("d", "much")}  # type: ignore[arg-type]
        return wrong.get(bookings[0].account, Balance("a", 1))

    delivery = open_target(SqlState(database, "balances", fail, Balance, key="account"))
    for cents, account, message in (
        (0, "b", "fail failed for key 'b', so the batch was not written: ZeroDivisionError"),
        (1, "c", r"returned Row\(account='x', cents=1, last=None\) for key 'c': the state must have the same key"),
        (1, "d", "fail failed for key 'd'.*cents"),
        (1, None, "1 of 2 rows have no value in 'account'"),
    ):
        with pytest.raises(DeliveryError, match=message):
            delivery.deliver(spark.createDataFrame([("a", 1, 0), (account, cents, 1)], BOOKINGS).coalesce(1), 0)
        assert rows("SELECT count(*) FROM balances") == [(0,)]


def test_a_row_without_its_key_goes_to_the_dead_letters(
    spark: SparkSession, balances: SqlState, rows: Rows, open_target: Open, tmp_path: Any
) -> None:
    refused = RefusedRows(Letters("memory:", f"file:{tmp_path / 'letters.jsonl'}", {}), "shop", "")
    delivery = open_target(balances, refused=refused)
    made = [("a", 1, 0), (None, 1, 1)]
    assert delivery.deliver(spark.createDataFrame(made, BOOKINGS), 0) == Delivered(1, refused=1)
    assert rows("SELECT account, cents FROM balances") == [("a", 1)]


def test_state_that_cannot_be_kept_is_refused_when_the_pipeline_is_built(
    spark: SparkSession, database: str, rows: Rows, balances: SqlState
) -> None:
    schema = spark.createDataFrame([], BOOKINGS).schema
    with pytest.raises(SchemaMismatchError, match="no column 'shop' for the key; the state has account, cents, last"):
        SqlState(database, "t", book, Balance, key="shop")
    with pytest.raises(ConfigError, match="'tags' is a list, a map or a record"):
        SqlState(database, "t", book, spark.createDataFrame([], "id int, tags array<int>").schema, key="id")
    with pytest.raises(ConfigError, match="update=5 is no function"):
        SqlState(database, "t", 5, Balance, key="account")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'mysql' is not a database for state table t"):
        SqlState("mysql://host/db", "t", book, Balance, key="account")
    with pytest.raises(ConfigError, match="complete mode sends all rows"):
        balances.check(schema, "complete")
    with pytest.raises(SchemaMismatchError, match="no column 'account' for the key; the frame for state"):
        balances.check(spark.range(1).schema, "append")
    with pytest.raises(SchemaMismatchError, match="key column 'account' of the frame is a 32-bit integer, and in the"):
        balances.check(spark.createDataFrame([], "account int").schema, "append")
    with pytest.raises(SchemaMismatchError, match="there is no state table balances"):
        replace(balances, create=False).check(schema, "append")
    rows("CREATE TABLE strict (account TEXT PRIMARY KEY, cents BIGINT NOT NULL, last BIGINT)")
    strict = replace(balances, table="strict")
    if database.startswith("sqlite:"):
        strict.check(schema, "append")
    else:
        with pytest.raises(SchemaMismatchError, match="'cents' is NOT NULL and has no default"):
            strict.check(schema, "append")
        rows("ALTER TABLE strict ALTER cents SET DEFAULT 0")
        strict.check(schema, "append")
    assert balances.for_version("v-2").table == "balances_v_2"
