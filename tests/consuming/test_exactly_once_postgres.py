"""Exactly once into PostgreSQL: handlers share transactions, and their statements are sent ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.app import App
from penstock.checkpoints.postgres.store import PostgresCheckpoints
from penstock.consuming import Context, Retry
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.errors import Reject
from penstock.model import DeadLetterFilter
from tests.postgres import shared_postgres

Fill = Callable[..., None]
Consume = Callable[..., App]
AT_ONCE = Retry(3, first_delay_s=0)
ALL = Counter(range(300))
INSERT = "INSERT INTO effects VALUES (%s)"


class Effects:
    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("CREATE TABLE effects (number int, tx text DEFAULT pg_current_xact_id()::text)")

    def numbers(self) -> Counter[int]:
        return Counter(number for (number,) in self.connection.execute("SELECT number FROM effects"))

    def transactions(self) -> int:
        ((count,),) = self.connection.execute("SELECT count(DISTINCT tx) FROM effects").fetchall()
        return int(count)


@pytest.fixture
def effects() -> Iterator[Effects]:
    found = Effects(shared_postgres().fresh_database())
    yield found
    found.connection.close()


def insert(value: bytes, ctx: Context) -> None:
    with ctx.transaction() as db:
        db.execute(INSERT, (int(value),))


@pytest.fixture
def run(fill: Fill, consume: Consume, effects: Effects, tmp_path: Path) -> Callable[..., SqliteDeadLetters]:
    """Handles 300 records of one partition, and gives those that failed for good."""

    def consume_all(handle: Callable[..., Any], count: int = 300, **options: Any) -> SqliteDeadLetters:
        fill("orders", count, keys=5)
        letters = SqliteDeadLetters(tmp_path / "letters.db")
        settings = {"checkpoints": effects.url, "retry": AT_ONCE, "dead_letters": letters, **options}
        consume(handle, guarantee="exactly-once", **settings)
        return letters

    return consume_all


Run = Callable[..., SqliteDeadLetters]


def rejected(letters: SqliteDeadLetters) -> list[int]:
    return [int(letter.record.value or b"") for letter in letters.browse(DeadLetterFilter())]


@pytest.mark.parametrize(("order", "workers"), [("partition", 1), ("key", 3), ("none", 3)])
def test_every_effect_happens_once_and_records_of_a_partition_share_transactions(
    order: str, workers: int, run: Run, effects: Effects
) -> None:
    run(insert, order=order, workers=workers)
    assert effects.numbers() == ALL
    if order == "partition":
        assert effects.transactions() < 10


@pytest.mark.parametrize("order", ["partition", "key"])
@pytest.mark.parametrize("after", [False, True])
def test_a_handler_that_fails_in_the_middle_of_a_group_loses_only_its_own_effect(
    after: bool, order: str, run: Run, effects: Effects
) -> None:
    calls: Counter[int] = Counter()

    def handle(value: bytes, ctx: Context) -> None:
        calls[int(value)] += 1
        if after:
            insert(value, ctx)
        if value == b"150":
            raise ValueError("always")
        if value == b"77":
            raise Reject("never again")
        if not after:
            insert(value, ctx)

    letters = run(handle, order=order, workers=2)
    assert sorted(rejected(letters)) == [77, 150]
    assert effects.numbers() == ALL - Counter([77, 150])
    assert max(calls[number] for number in ALL if number not in (77, 150)) <= 12


def test_a_statement_that_fails_is_the_failure_of_its_own_record(run: Run, effects: Effects) -> None:
    effects.connection.execute("CREATE UNIQUE INDEX ON effects (number)")
    effects.connection.execute(INSERT, (120,))
    letters = run(insert)
    assert rejected(letters) == [120]
    assert "UniqueViolation" in letters.browse(DeadLetterFilter())[0].error_kind
    assert effects.numbers() == ALL


def test_a_handler_that_turns_the_error_of_another_into_a_rejection_is_called_again(run: Run, effects: Effects) -> None:
    effects.connection.execute("CREATE UNIQUE INDEX ON effects (number)")
    effects.connection.execute(INSERT, (120,))

    def handle(value: bytes, ctx: Context) -> None:
        try:
            insert(value, ctx)
        except psycopg.Error as error:
            raise Reject("the database did not want it") from error

    assert rejected(run(handle)) == [120]
    assert effects.numbers() == ALL


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_errors_that_handlers_catch_are_those_of_their_own_statements(where: str, run: Run, effects: Effects) -> None:
    effects.connection.execute("CREATE UNIQUE INDEX ON effects (number)")
    effects.connection.execute(INSERT, (120,))

    def handle(value: bytes, ctx: Context) -> None:
        if where == "inside":
            with ctx.transaction() as db:
                try:
                    db.execute(INSERT, (int(value),))
                except psycopg.errors.UniqueViolation:
                    return
        else:
            try:
                insert(value, ctx)
            except psycopg.errors.UniqueViolation:
                ctx.state["seen"] = 1
                with ctx.transaction() as db:
                    db.execute(INSERT, (1000,))

    letters = run(handle, order="partition")
    if where == "inside":  # PostgreSQL has aborted the transaction: only the block as a whole can be undone
        assert rejected(letters) == [120]
        assert "caught inside" in letters.browse(DeadLetterFilter())[0].error
        assert effects.numbers() == ALL
    else:
        assert rejected(letters) == []
        assert effects.numbers() == ALL + Counter([1000])


def test_a_constraint_that_is_checked_at_the_commit_fails_the_record_that_violates_it(
    run: Run, effects: Effects
) -> None:
    effects.connection.execute("CREATE TABLE known (number int PRIMARY KEY)")
    effects.connection.execute("INSERT INTO known SELECT n FROM generate_series(0, 999) AS n WHERE n != 201")
    effects.connection.execute(
        "ALTER TABLE effects ADD FOREIGN KEY (number) REFERENCES known DEFERRABLE INITIALLY DEFERRED"
    )
    assert rejected(run(insert)) == [201]
    assert effects.numbers() == ALL - Counter([201])


def test_a_handler_that_reads_sees_what_was_written_before(run: Run, effects: Effects) -> None:
    def handle(value: bytes, ctx: Context) -> None:
        with ctx.transaction() as db:
            if db.execute("UPDATE effects SET number = number + 1").rowcount == 0:
                db.execute(INSERT, (0,))
            cursor = db.cursor()
            cursor.execute("SELECT number FROM effects")
            assert [column.name for column in cursor.description] == ["number"]
            assert cursor.fetchone() == (int(value),)

    assert rejected(run(handle)) == []
    assert effects.numbers() == Counter([299])


def test_what_cannot_be_sent_ahead_works_as_before(run: Run, effects: Effects) -> None:
    def handle(value: bytes, ctx: Context) -> None:
        number = int(value)
        with ctx.transaction() as db:
            match number % 5:
                case 0:
                    with db.cursor().copy("COPY effects (number) FROM STDIN") as copy:
                        copy.write_row((number,))
                case 1:
                    with db.transaction():
                        db.execute(INSERT, (number,))
                case 2:
                    db.execute(f"INSERT INTO effects VALUES ({number}); DELETE FROM effects WHERE number < 0")
                case 3:
                    with db.cursor("on_the_server") as cursor:
                        assert cursor.execute("SELECT 1").fetchone() == (1,)
                    db.cursor().executemany(INSERT, [(number,)])
                case _:
                    with db.pipeline():
                        db.execute(INSERT, (number,))

    assert rejected(run(handle)) == []
    assert effects.numbers() == ALL


def test_slow_statements_end_a_transaction_before_its_records_do(run: Run, effects: Effects) -> None:
    def handle(value: bytes, ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute("INSERT INTO effects SELECT %s FROM pg_sleep(0.02)", (int(value),))

    run(handle, count=60)
    assert effects.numbers() == Counter(range(60))
    assert effects.transactions() >= 2


def test_a_handler_cannot_commit_what_was_sent_ahead(run: Run, effects: Effects) -> None:
    def handle(value: bytes, ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute(INSERT, (int(value),))
            if value == b"5":
                db.execute("COMMIT")
            if value == b"6":
                db.commit()

    letters = run(handle, count=20)
    assert rejected(letters) == [5, 6]
    assert {letter.error_kind for letter in letters.browse(DeadLetterFilter())} == {"TransactionError"}
    assert effects.numbers() == Counter(range(20)) - Counter([5, 6])


def test_statements_are_not_sent_ahead_where_that_is_switched_off(run: Run, effects: Effects) -> None:
    store = PostgresCheckpoints(effects.url, send_ahead=False)
    found: set[bool] = set()

    def handle(value: bytes, ctx: Context) -> None:
        with ctx.transaction() as db:
            found.add(db.execute(INSERT, (int(value),)).pgresult is not None)

    run(handle, checkpoints=store)
    store.close()
    assert found == {True}
    assert effects.numbers() == ALL
