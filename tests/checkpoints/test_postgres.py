"""What is particular about checkpoints in PostgreSQL."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from penstock.checkpoints.postgres import store as postgres_store
from penstock.checkpoints.postgres.store import PostgresCheckpoints, PostgresTransaction
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    FencedError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TransactionError,
)
from penstock.testing.conformance.child import Child, Parent
from tests.checkpoints.cutting_proxy import CuttingProxy
from tests.checkpoints.samples import KEY, change, lease_on, start_of
from tests.postgres import PostgresServer, shared_postgres


@pytest.fixture
def url() -> str:
    return shared_postgres().fresh_database()


@pytest.fixture
def store(url: str) -> Iterator[PostgresCheckpoints]:
    with PostgresCheckpoints(url) as opened:
        with opened.transaction() as tx:
            tx.connection.execute("CREATE TABLE effect (x integer)")
        yield opened


def effects(store: PostgresCheckpoints) -> list[int]:
    with store.transaction() as tx:
        return [row[0] for row in tx.connection.execute("SELECT x FROM effect ORDER BY x").fetchall()]


def test_many_may_open_a_new_database_at_once(url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(PostgresCheckpoints, [url] * 8))
    lease = lease_on(stores[0])
    assert [list(store.leases(KEY.group)) for store in stores] == [[lease]] * 8
    for store in stores:
        store.close()


def test_tables_of_a_newer_version_are_refused(url: str) -> None:
    PostgresCheckpoints(url).close()
    with psycopg.connect(url) as other:
        other.execute("UPDATE penstock_schema SET version = 99")
    with pytest.raises(ConfigError, match=r"version 99.*supports only version 1"):
        PostgresCheckpoints(url)


def test_the_search_path_chooses_the_schema(url: str) -> None:
    other = shared_postgres().fresh_database()
    with PostgresCheckpoints(url) as store, PostgresCheckpoints(other) as elsewhere:
        store.save(lease_on(store), KEY, change(1))
        assert start_of(store) == 1
        assert start_of(elsewhere) is None


def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    with pytest.raises(StoreUnavailableError, match=r"'db' at 127\.0\.0\.1") as caught:
        PostgresCheckpoints("postgresql://user:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value)


def test_a_user_who_may_not_make_tables_is_told(url: str) -> None:
    with psycopg.connect(url) as other:
        other.execute("CREATE ROLE reader LOGIN")
    with pytest.raises(ConfigError, match="schema"):
        PostgresCheckpoints(url.replace("penstock@", "reader@"))


def test_the_store_goes_on_when_the_server_was_restarted() -> None:
    with PostgresServer() as server, PostgresCheckpoints(server.fresh_database()) as store:
        lease = lease_on(store)
        store.save(lease, KEY, change(1))
        server.kill()
        for use in (
            lambda: store.load(KEY),
            lambda: store.save(lease, KEY, change(2)),
            lambda: store.renew(lease),
            lambda: store.transaction().__enter__(),
        ):
            with pytest.raises(StoreUnavailableError, match="is unavailable"):
                use()
        server.start()
        assert start_of(store) == 1
        store.save(lease, KEY, change(2))
        with store.transaction() as tx:
            tx.save(lease, KEY, change(3))
        assert start_of(store) == 3


def test_a_server_lost_in_the_middle_of_a_transaction_makes_the_store_unavailable() -> None:
    with PostgresServer() as server, PostgresCheckpoints(server.fresh_database()) as store:
        lease = lease_on(store)

        def use(saves: bool) -> None:
            with store.transaction() as tx:
                tx.connection.execute("SELECT 1")
                server.kill()
                if saves:
                    tx.save(lease, KEY, change(1))
                else:
                    tx.connection.execute("SELECT 2")

        for saves in (True, False):
            with pytest.raises(StoreUnavailableError, match="is unavailable"):
                use(saves)
            server.start()
        assert start_of(store) is None
        store.save(lease, KEY, change(1))


def test_a_commit_whose_answer_was_lost_counts(url: str) -> None:
    with cut_off(url) as (proxy, store):
        lease = lease_on(store)
        proxy.cut_next_commit(passes_on=True)
        with store.transaction() as tx:
            tx.save(lease, KEY, change(1))
        assert proxy.cuts == 1
        assert start_of(store) == 1


def test_a_commit_that_never_arrived_does_not_count(url: str) -> None:
    with cut_off(url) as (proxy, store):
        lease = lease_on(store)
        proxy.cut_next_commit(passes_on=False)
        with pytest.raises(StoreUnavailableError) as caught, store.transaction() as tx:
            tx.save(lease, KEY, change(1))
        assert not isinstance(caught.value, OutcomeUnknownError)
        assert proxy.cuts == 1
        assert start_of(store) is None


@pytest.mark.parametrize("passes_on", [True, False])
def test_a_commit_that_nobody_can_ask_about_has_an_unknown_outcome(
    url: str, passes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "ASK_TIMEOUT_S", 0.1)
    with cut_off(url) as (proxy, store):
        lease = lease_on(store)
        proxy.cut_next_commit(passes_on, refuses_then=True)
        with pytest.raises(OutcomeUnknownError, match="load the checkpoint"), store.transaction() as tx:
            tx.save(lease, KEY, change(1))
    with PostgresCheckpoints(url) as direct:
        assert start_of(direct) == (1 if passes_on else None)


class cut_off:
    """A store whose connections go through a proxy."""

    def __init__(self, url: str) -> None:
        self._port = urlsplit(url).port
        assert self._port is not None
        self._proxy = CuttingProxy(self._port)
        self._url = url

    def __enter__(self) -> tuple[CuttingProxy, PostgresCheckpoints]:
        self._proxy.__enter__()
        url = self._url.replace(f":{self._port}/", f":{self._proxy.port}/")
        self._store = PostgresCheckpoints(f"{url}&gssencmode=disable")
        return self._proxy, self._store

    def __exit__(self, *error: Any) -> None:
        self._store.close()
        self._proxy.__exit__(None, None, None)


def work_until_told(store: PostgresCheckpoints, parent: Parent, saves_first: bool) -> None:
    """Be in the middle of a transaction when the parent says go, and tell how it ended."""
    lease = lease_on(store, owner="sleeper")
    parent.send(os.getpid())
    try:
        with store.transaction() as tx:
            tx.connection.execute("INSERT INTO effect VALUES (1)")
            if saves_first:
                tx.save(lease, KEY, change(1))
            parent.send("in the middle")
            parent.receive()
            if not saves_first:
                tx.save(lease, KEY, change(1))
    except (FencedError, StoreUnavailableError) as error:
        parent.send(type(error).__name__)
    else:
        parent.send("committed")


def open_impatient(url: str) -> PostgresCheckpoints:
    return PostgresCheckpoints(url, idle_in_transaction_s=0.3)


@pytest.mark.parametrize("saves_first", [False, True])
def test_a_process_that_was_paused_in_a_transaction_is_refused_when_it_wakes_up(
    url: str, store: PostgresCheckpoints, saves_first: bool
) -> None:
    """If it was paused behind its save, the server ends the transaction, or nobody could ever take over."""
    opener = partial(open_impatient if saves_first else PostgresCheckpoints, url)
    with Child(opener, work_until_told, saves_first) as child:
        process = child.receive()
        assert child.receive() == "in the middle"
        os.kill(process, signal.SIGSTOP)
        lease = lease_on(store, owner="awake")
        store.save(lease, KEY, change(7))
        os.kill(process, signal.SIGCONT)
        child.send("go")
        assert child.receive() == ("StoreUnavailableError" if saves_first else "FencedError")
    assert start_of(store) == 7
    assert effects(store) == []


def test_effects_may_be_copied_and_pipelined_and_executed_many_at_a_time(store: PostgresCheckpoints) -> None:
    lease = lease_on(store)
    with store.transaction() as tx:
        connection = tx.connection
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO effect VALUES (%s)", [(1,), (2,)])
            with cursor.copy("COPY effect FROM STDIN") as copy:
                copy.write_row((3,))
        with connection.pipeline():
            connection.execute("INSERT INTO effect VALUES (4)")
            connection.execute("INSERT INTO effect VALUES (%s)", (5,))
            tx.save(lease, KEY, change(1))
    assert effects(store) == [1, 2, 3, 4, 5]
    assert start_of(store) == 1


ENDINGS: dict[str, Callable[[Any], object]] = {
    "commit()": lambda connection: connection.commit(),
    "rollback()": lambda connection: connection.rollback(),
    "commit": lambda connection: connection.execute("commit"),
    "bytes": lambda connection: connection.execute(b"COMMIT"),
    "commented": lambda connection: connection.execute("/* a */ -- b\n COMMIT AND CHAIN"),
    "cursor": lambda connection: connection.cursor().execute("END"),
    "BEGIN": lambda connection: connection.execute("begin"),
    "ABORT": lambda connection: connection.execute("ABORT"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_transaction_is_not_ended_from_inside(store: PostgresCheckpoints, ending: str) -> None:
    lease = lease_on(store)

    def use() -> None:
        with store.transaction() as tx:
            tx.connection.execute("INSERT INTO effect VALUES (1)")
            ENDINGS[ending](tx.connection)
            tx.save(lease, KEY, change(1))

    with pytest.raises(TransactionError, match="ends with its block"):
        use()
    assert effects(store) == []
    assert start_of(store) is None


@pytest.mark.parametrize("saves", [True, False])
def test_a_commit_hidden_among_other_statements_is_noticed(store: PostgresCheckpoints, saves: bool) -> None:
    lease = lease_on(store)

    def use() -> None:
        with store.transaction() as tx:
            tx.connection.execute("SELECT 1; COMMIT")
            if saves:
                tx.save(lease, KEY, change(1))

    with pytest.raises(TransactionError, match="ended from inside"):
        use()
    assert start_of(store) is None
    store.save(lease, KEY, change(1))


def test_words_that_only_look_like_an_end_are_allowed(store: PostgresCheckpoints) -> None:
    with store.transaction() as tx:
        tx.connection.execute("SAVEPOINT a")
        tx.connection.execute("INSERT INTO effect VALUES (1)")
        tx.connection.execute("ROLLBACK TO a")
        tx.connection.execute("ROLLBACK TO SAVEPOINT a")
        tx.connection.execute("SELECT 'COMMIT' AS ending")
        with tx.connection.transaction():
            tx.connection.execute("INSERT INTO effect VALUES (2)")
    assert effects(store) == [2]


def test_psycopgs_own_rollback_is_not_taken_for_a_commit(store: PostgresCheckpoints) -> None:
    lease = lease_on(store)

    def use() -> None:
        with store.transaction() as tx:
            tx.save(lease, KEY, change(1))
            raise psycopg.Rollback

    with pytest.raises(psycopg.Rollback):
        use()
    assert start_of(store) is None


def test_a_row_factory_of_the_user_does_not_outlast_the_transaction(store: PostgresCheckpoints) -> None:
    lease = lease_on(store)
    with store.transaction() as tx:
        tx.connection.row_factory = psycopg.rows.dict_row
        assert tx.connection.execute("SELECT 1 AS x").fetchone() == {"x": 1}
        tx.save(lease, KEY, change(1))
    with store.transaction() as tx:
        assert tx.connection.execute("SELECT 1 AS x").fetchone() == (1,)
    assert start_of(store) == 1


def test_a_deferred_constraint_that_fails_at_the_commit_rolls_everything_back(store: PostgresCheckpoints) -> None:
    lease = lease_on(store)
    with store.transaction() as tx:
        tx.connection.execute("CREATE TABLE once (x integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    def use() -> None:
        with store.transaction() as tx:
            tx.connection.execute("INSERT INTO once VALUES (1), (1)")
            tx.save(lease, KEY, change(1))

    with pytest.raises(psycopg.errors.UniqueViolation):
        use()
    assert start_of(store) is None
    store.save(lease, KEY, change(1))


def test_more_transactions_than_connections_wait_and_then_say_so(url: str) -> None:
    with PostgresCheckpoints(url, max_connections=2, timeout_s=0.05) as store:
        lease = lease_on(store)
        with store.transaction(), store.transaction(), pytest.raises(StoreUnavailableError, match="max_connections"):
            store.renew(lease)
        assert store.renew(lease).beat == 1


def test_a_lease_is_renewed_while_a_transaction_that_has_saved_under_it_is_open(store: PostgresCheckpoints) -> None:
    lease = lease_on(store)
    with store.transaction() as tx:
        tx.save(lease, KEY, change(1))
        renewed: list[int] = []
        thread = threading.Thread(target=lambda: renewed.append(store.renew(lease).beat))
        thread.start()
        thread.join(20)
        assert renewed == [1]
    assert start_of(store) == 1


def test_a_store_does_not_cross_a_fork(store: PostgresCheckpoints) -> None:
    """The child may close it, too, without closing the connections of its parent."""
    lease = lease_on(store)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def use() -> None:
        try:
            store.groups()
        except ConfigError as error:
            store.close()
            queue.put(str(error))
        os._exit(0)

    child = context.Process(target=use)
    child.start()
    child.join(30)
    assert "connected to by another process" in queue.get()
    assert store.renew(lease).beat == 1


def test_a_closed_store_says_so(url: str) -> None:
    store = PostgresCheckpoints(url)
    store.close()
    for use in (store.groups, lambda: store.transaction().__enter__()):
        with pytest.raises(ConnectionClosedError, match="are closed"):
            use()


def test_a_transaction_is_used_inside_its_block_only(store: PostgresCheckpoints) -> None:
    with store.transaction() as tx:
        assert isinstance(tx, PostgresTransaction)
    with pytest.raises(TransactionError, match="not open"):
        tx.connection.execute("SELECT 1")
