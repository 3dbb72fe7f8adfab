"""Tables of PostgreSQL as topics: those that we make, and existing ones."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

import penstock
from penstock.abc import TopicStream
from penstock.cli.main import app as command
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    DeliveryError,
    InvalidTopicError,
    NotAllowedError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.model import NewRecord, Record
from penstock.streams.sql.postgres_pool import LONGEST_PAUSE_S
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.postgres import PostgresServer, user_who_may
from tests.secured_kafka import make_certificates
from tests.seeds import seed_of
from tests.servers import free_ports
from tests.systems.killed_app import FAILS_ALWAYS, run_and_kill

pytestmark = [pytest.mark.system("PostgreSQL"), pytest.mark.xdist_group("postgres tables")]

ADDRESS = "PENSTOCK_CONFORMANCE_POSTGRES"
USER = "penstock"


class Outage:
    """A server and the proxy in front of it."""

    def __init__(self, server: PostgresServer, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self.server = server

    def kill(self) -> None:
        self.server.kill()

    def restart(self) -> None:
        self.server.start()


_running: list[Outage] = []


def outage() -> Outage:
    return _running[-1]


@pytest.fixture(scope="module")
def behind() -> Iterator[Outage]:
    server = PostgresServer()
    logins = server.folder / "logins.conf"
    logins.write_text("host all guarded 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n")
    logins.chmod(0o644)
    server.settings["hba_file"] = str(logins)
    with server, TcpProxy(server.port) as proxy:
        _running.append(Outage(server, proxy))
        with psycopg.connect(server.url) as connection, penstock.connect(server.url) as stream:
            version = connection.info.server_version
            system_table.met("PostgreSQL", f"PostgreSQL {version // 10000}.{version % 10000}", stream.features)
        yield _running[-1]
        _running.pop()


@pytest.fixture
def url(behind: Outage) -> str:
    """Where no table is."""
    return behind.server.fresh_database()


def open_tables() -> penstock.Connection:
    return penstock.connect(f"postgresql://{USER}@{os.environ[ADDRESS]}/postgres?request_timeout_s=3")


def delete_rows(connection: penstock.Connection, topic: str, partition: int, before: int) -> None:
    with psycopg.connect(outage().server.url) as database:
        database.execute(f'DELETE FROM "{topic}" WHERE partition = %s AND id < %s'.encode(), (partition, before))


class TestConformance(
    conformance.stream(  # type: ignore[misc]
        open_tables, expire=delete_rows, outage=outage, longest_backoff_s=LONGEST_PAUSE_S
    )
):
    """Everything that a stream promises, with processes and servers that are killed."""

    @pytest.fixture(autouse=True)
    def _server(self, behind: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(ADDRESS, behind.proxy.address)


@pytest.fixture
def stream(url: str) -> Iterator[penstock.Connection]:
    with penstock.connect(url) as connection:
        yield connection


def test_a_row_that_another_program_inserts_is_a_record(url: str, stream: penstock.Connection) -> None:
    stream.create_topic("orders", 2)
    stream.send("orders", b"ours", partition=0).result(10)
    before_ms = time.time_ns() // 1_000_000 - 60_000
    with psycopg.connect(url) as database:
        database.execute(
            "INSERT INTO orders (partition, key, value, headers, timestamp_ms) VALUES "
            """(0, 'k', 'theirs', '{"trace": "7", "n": 1, "none": null}', 5), (1, NULL, NULL, NULL, 6)"""
        )
        database.execute("INSERT INTO orders (value) VALUES ('plain')")
    [ours, theirs, plain] = stream.read("orders", partitions=[0])
    assert (ours.offset, theirs.offset, plain.offset) == (0, 1, 2)
    assert (theirs.key, theirs.value, theirs.timestamp_ms) == (b"k", b"theirs", 5)
    assert theirs.headers == (("trace", b"7"), ("n", b"1"), ("none", None))
    assert (plain.timestamp_ms or 0) > before_ms
    [tombstone] = stream.read("orders", partitions=[1])
    assert (tombstone.key, tombstone.value, tombstone.offset) == (None, None, 0)
    with psycopg.connect(url) as database, pytest.raises(psycopg.errors.RaiseException, match="no partition 7"):
        database.execute("INSERT INTO orders (partition, value) VALUES (7, '')")


def test_an_append_waits_for_an_open_transaction_of_its_partition(url: str, stream: penstock.Connection) -> None:
    """So no offset appears below one that was read."""
    stream.create_topic("orders", 2)
    topic = stream.open_topic("orders")
    with psycopg.connect(url) as database:
        database.execute("INSERT INTO orders (value) VALUES ('first')")
        receipt = stream.send("orders", b"second", partition=0)
        assert not topic.read(0, 0, 10, 0.1)
        assert not receipt.done
        database.commit()
        assert receipt.result(10).offset == 1
        assert [record.value for record in topic.read(0, 0, 10, 0.0)] == [b"first", b"second"]
        database.execute("INSERT INTO orders (value) VALUES ('undone')")
        receipt = stream.send("orders", b"third", partition=0)
        database.rollback()
        assert receipt.result(10).offset == 2, "an offset that was rolled back is given again"


def test_an_append_fails_when_a_transaction_holds_its_partition_for_too_long(url: str) -> None:
    with penstock.connect(f"{url}&request_timeout_s=0.5") as stream, psycopg.connect(url) as database:
        stream.create_topic("orders")
        database.execute("INSERT INTO orders (value) VALUES ('held')")
        receipt = stream.send("orders", b"late")
        with pytest.raises(DeliveryError, match="statement timeout") as raised:
            receipt.result(30)
        assert raised.value.retriable
        database.rollback()
        assert stream.send("orders", b"again").result(10).offset == 0


def test_offsets_are_dense_and_in_order_with_many_writers_and_rollbacks(url: str, stream: penstock.Connection) -> None:
    rng = random.Random(seed_of())
    stream.create_topic("orders", 2)
    done = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        topic = stream.open_topic("orders")
        readers = [pool.submit(follow, topic, partition, done) for partition in (0, 1)]
        try:
            seeds = [rng.randrange(1 << 30) for _ in range(4)]
            inserting = [pool.submit(insert_rows, url, seed) for seed in seeds]
            for number in range(300):
                stream.send("orders", b"sent %d" % number, key=b"%d" % number)
            stream.flush(60)
            inserted = [value for each in inserting for value in each.result(120)]
        finally:
            done.set()
        found = [reader.result(60) for reader in readers]
    for records in found:
        assert [record.offset for record in records] == list(range(len(records)))
    values = sorted(record.value or b"" for records in found for record in records)
    assert values == sorted([*inserted, *(b"sent %d" % number for number in range(300))])


def insert_rows(url: str, seed: int) -> list[bytes]:
    """Insert as other programs do, and roll back now and then. Returns what was committed."""
    rng = random.Random(seed)
    committed: list[bytes] = []
    with psycopg.connect(url) as database:
        for number in range(40):
            values = [b"%d %d %d" % (seed, number, each) for each in range(rng.randint(1, 3))]
            partition = rng.randrange(2)
            for value in values:
                database.execute("INSERT INTO orders (partition, value) VALUES (%s, %s)", (partition, value))
            if rng.random() < 0.3:
                database.rollback()
            else:
                database.commit()
                committed += values
    return committed


def follow(topic: TopicStream, partition: int, done: threading.Event) -> list[Record]:
    found: list[Record] = []
    start, deadline_s = 0, time.monotonic() + 120
    while time.monotonic() < deadline_s:
        was_done = done.is_set()
        batch = topic.read(partition, start, 50, 0.05)
        found += batch
        start = batch.next
        if was_done and not batch:
            return found
    raise AssertionError("the reader did not come to an end")


def test_a_notification_wakes_a_waiting_reader(url: str, stream: penstock.Connection) -> None:
    """Polling alone would take a minute."""
    stream.create_topic("orders")
    with penstock.connect(f"{url}&poll_interval_s=60") as reading, ThreadPoolExecutor(1) as pool:
        topic = reading.open_topic("orders")
        for number in range(3):
            waiting = pool.submit(topic.read, 0, number, 10, 50.0)
            with psycopg.connect(url, autocommit=True) as database:
                wait_until(lambda: database.execute(LISTENING).fetchall())
                if number < 2:
                    stream.send("orders", b"%d" % number).result(10)
                else:
                    database.execute("INSERT INTO orders (value) VALUES ('2')")
            assert [record.value for record in waiting.result(30)] == [b"%d" % number]


LISTENING = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle'"


def test_a_hole_between_rows_is_skipped_and_one_at_the_beginning_is_not(url: str, stream: penstock.Connection) -> None:
    stream.create_topic("orders")
    topic = stream.open_topic("orders")
    for receipt in topic.append([NewRecord("orders", b"%d" % number) for number in range(10)]):
        receipt.result(10)
    with psycopg.connect(url) as database:
        database.execute("DELETE FROM orders WHERE id < 2 OR id = 5")
    assert [record.offset for record in topic.read(0, 5, 10, 0.0)] == [6, 7, 8, 9]
    with pytest.raises(OffsetOutOfRangeError, match="offset 1 was deleted by retention; the log holds 2 to 10"):
        topic.read(0, 1, 10, 0.0)
    with pytest.raises(OffsetOutOfRangeError, match="has not been written yet"):
        topic.read(0, 11, 10, 0.0)
    with psycopg.connect(url) as database:
        database.execute("DELETE FROM orders")
    with pytest.raises(OffsetOutOfRangeError, match="holds 10 to 10"):
        topic.read(0, 9, 10, 0.0)
    assert topic.span(0) == (10, 10)


def test_what_cannot_be_done_is_refused(url: str, stream: penstock.Connection) -> None:
    with pytest.raises(UnknownTopicError, match=r"has no topic 'orders': create it, or, .* \?id_column="):
        stream.open_topic("orders").partitions()
    with pytest.raises(DeliveryError, match="has no topic 'orders'"):
        stream.send("orders", b"").result(10)
    with psycopg.connect(url) as database:
        database.execute("CREATE TABLE taken (id serial)")
    with pytest.raises(TopicExistsError, match="already has a table or topic 'taken'"):
        stream.create_topic("taken")
    with pytest.raises(InvalidTopicError, match="63 characters"):
        stream.create_topic("x" * 64)
    with pytest.raises(InvalidTopicError, match="Penstock's or the database's"):
        stream.create_topic("penstock_lease")
    stream.create_topic("orders")
    with penstock.connect(f"{url}&max_record_bytes=100") as small:
        with pytest.raises(DeliveryError, match=r"a record of 101 bytes .* raise that setting"):
            small.send("orders", b"x" * 101).result(10)
        assert small.send("orders", b"x" * 100).result(10).offset == 0
    stream.delete_topic("orders")
    assert "orders" not in stream.topics()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("speed=3", 'invalid URI query parameter: "speed"'),
        ("poll_interval_s=0", "poll_interval_s=0.0 must be positive"),
        ("poll_interval_s=soon", "must be a number"),
        ("key_column=k", "key_column is for existing tables: add id_column"),
        ("id_column=id&value_columns=a&payload_column=b", "exclude each other"),
        ("id_column=id&deleted_rows=maybe", "must be one of error, skip"),
    ],
)
def test_settings_are_checked(url: str, wrong: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        penstock.connect(f"{url}&{wrong}")


def test_a_login_that_is_refused_is_told_without_the_password(behind: Outage) -> None:
    port = behind.server.port
    with psycopg.connect(behind.server.url, autocommit=True) as database:
        database.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    for who, message in (
        ("guarded:wrong-secret", "password authentication failed"),
        ("guarded", "no password supplied"),
        ("stranger", 'role "stranger" does not exist'),
    ):
        with pytest.raises(BrokerUnavailableError, match=message) as raised:
            penstock.connect(f"postgresql://{who}@127.0.0.1:{port}/postgres")
        assert "wrong-secret" not in str(raised.value)
        assert not raised.value.retriable
    with pytest.raises(NotAllowedError, match="permission denied"):
        penstock.connect(f"postgresql://guarded:right@127.0.0.1:{port}/postgres?options=-csearch_path%3Dpublic")


def test_parameters_of_libpq_are_passed_on_as_they_are(behind: Outage) -> None:
    options = "options=-c%20search_path%3Dpublic&application_name=a+b&poll_interval_s=1"
    with penstock.connect(f"{behind.server.url}?{options}") as stream:
        stream.topics()
        with psycopg.connect(behind.server.url) as database:
            names = database.execute("SELECT application_name FROM pg_stat_activity").fetchall()
    assert ("a+b",) in names


def test_a_server_with_tls_is_verified(tmp_path: Path) -> None:
    authorities = []
    for name in ("stranger", "ours"):
        (tmp_path / name).mkdir()
        authorities.append(tmp_path / name / "ca.pem")
        make_certificates(tmp_path / name, authorities[-1], tmp_path / name / "both.pem")
    stranger, ours = authorities
    server = PostgresServer()
    for name in ("server.crt", "server.key"):
        shutil.copy(ours.with_name(name), server.folder / name)
        (server.folder / name).chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(server.folder / name, user_who_may())
    logins = server.folder / "logins.conf"
    logins.write_text("hostssl all all 127.0.0.1/32 trust\n")
    logins.chmod(0o644)
    files = {"ssl_cert_file": "server.crt", "ssl_key_file": "server.key", "hba_file": "logins.conf"}
    server.settings |= {"ssl": "on", **{name: str(server.folder / file) for name, file in files.items()}}
    with server:
        with penstock.connect(f"{server.url}?sslmode=verify-full&sslrootcert={ours}") as stream:
            stream.create_topic("orders")
        with pytest.raises(BrokerUnavailableError, match=r"no pg_hba\.conf entry"):
            penstock.connect(f"{server.url}?sslmode=disable")
        with pytest.raises(BrokerUnavailableError, match="certificate verify failed"):
            penstock.connect(f"{server.url}?sslmode=verify-full&sslrootcert={stranger}")


def test_a_server_that_is_not_there_is_told() -> None:
    [port] = free_ports(1)
    with pytest.raises(BrokerUnavailableError, match=r"database 'd' at 127\.0\.0\.1 is unavailable") as raised:
        penstock.connect(f"postgres://u:secret@127.0.0.1:{port}/d")
    assert raised.value.retriable
    assert "secret" not in str(raised.value)


def test_an_app_whose_process_is_killed_handles_every_record(url: str, tmp_path: Path) -> None:
    """Checkpoints and dead letters are in the same database."""
    with penstock.connect(url) as stream:
        stream.create_topic("orders", 2)
        for number in range(200):
            stream.send("orders", b"%d" % number, key=b"%d" % (number % 7))
    found = run_and_kill(url, "orders", tmp_path, random.Random(seed_of()).randint(20, 150))
    assert set(found) == {b"%d" % number for number in range(200)} - {FAILS_ALWAYS}
    with penstock.connect(url) as stream:
        assert {record.value for record in stream.read("orders.dlq", timeout_s=10)} == {FAILS_ALWAYS}
    with psycopg.connect(url) as database:
        assert database.execute("SELECT count(*) FROM penstock_checkpoint").fetchall() == [(2,)]


def test_pointers_come_back_from_a_checkpoint_store_of_sqlite(url: str, tmp_path: Path) -> None:
    with penstock.connect(url) as stream:
        stream.create_topic("orders")
        for number in range(100):
            stream.send("orders", b"%d" % number)
    store = f"sqlite:{tmp_path / 'checkpoints.db'}"
    found = run_and_kill(url, "orders", tmp_path, 40, checkpoints=store)
    assert set(found) == {b"%d" % number for number in range(100)} - {FAILS_ALWAYS}


def test_the_commands_work_on_it(url: str) -> None:
    run = CliRunner().invoke
    assert run(command, ["topics", "create", "orders", "--partitions", "2", "--url", url]).exit_code == 0
    assert run(command, ["produce", "orders", "--url", url], input="first\nsecond\n").exit_code == 0
    shown = run(command, ["consume", "orders", "--format", "raw", "--url", url])
    assert sorted(shown.output.split()) == ["first", "second"]
    assert "orders" in run(command, ["topics", "list", "--url", url]).output
