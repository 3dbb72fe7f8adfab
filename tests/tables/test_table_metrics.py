"""Outboxes, tables and projections in the metrics of their process."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client import generate_latest
from typer.testing import CliRunner

import penstock as ps
from penstock.cli.main import app
from penstock.errors import BrokerUnavailableError
from penstock.observe.metrics import registry
from penstock.streams.memory import MemoryStream
from penstock.tables import Outbox
from penstock.tables.events import EventStore, StoredEvent
from penstock.tables.outbox.relay import Relay
from tests.postgres import shared_postgres
from tests.servers import free_ports
from tests.tables.captured import wait_until
from tests.tables.events.bank import Account, Deposited
from tests.tables.events.test_projections import balances

orders = ps.Topic("orders", dict)


def metric(name: str, **labels: str) -> float | None:
    """The value of a metric of this process with these labels."""
    return value_in(generate_latest(registry()).decode(), name, **labels)


def value_in(text: str, name: str, **labels: str) -> float | None:
    shown = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    found = re.search(rf"^{name}{{{re.escape(shown)}}} (\S+)$", text, re.MULTILINE)
    return None if found is None else float(found[1])


def filled(url: str, count: int) -> Outbox:
    outbox = Outbox(url)
    is_sqlite = url.startswith("sqlite:")
    connection: Any
    connection = sqlite3.connect(url.removeprefix("sqlite:")) if is_sqlite else psycopg.connect(url, autocommit=True)
    with contextlib.closing(connection), outbox.transaction(connection) as tx:
        for number in range(count):
            tx.send(orders, {"number": number})
    return outbox


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'shop.db'}" if request.param == "sqlite" else shared_postgres().fresh_database()


def test_a_relay_that_cannot_deliver_shows_how_many_events_wait_and_since_when(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, stream = filled(url, 3), MemoryStream(partitions=1)
    is_away = threading.Event()
    is_away.set()
    provide = Relay._provide

    def failing(relay: Relay, *arguments: Any) -> None:
        if is_away.is_set():
            raise BrokerUnavailableError("the stream is away")
        provide(relay, *arguments)

    monkeypatch.setattr(Relay, "_provide", failing)
    relay = outbox.relay(stream, name="metered")
    thread = threading.Thread(target=relay.run)
    thread.start()
    of_relay = {"outbox": "metered"}
    try:
        wait_until(lambda: metric("penstock_outbox_problem", **of_relay) == 1, "the problem is shown")
        assert metric("penstock_outbox_waiting_events", **of_relay) == 3
        oldest_s = metric("penstock_outbox_oldest_seconds", **of_relay)
        assert oldest_s is not None
        wait_until(lambda: (metric("penstock_outbox_oldest_seconds", **of_relay) or 0) > oldest_s, "it grows older")
        before = metric("penstock_outbox_delivered_total", **of_relay) or 0
        is_away.clear()
        wait_until(lambda: metric("penstock_outbox_waiting_events", **of_relay) == 0, "they are delivered")
        assert metric("penstock_outbox_problem", **of_relay) == 0
        assert metric("penstock_outbox_oldest_seconds", **of_relay) == 0
    finally:
        relay.stop()
        thread.join()
        stream.close()
    assert metric("penstock_outbox_delivered_total", **of_relay) == before + 3, "it is kept when the relay has ended"
    assert metric("penstock_outbox_waiting_events", **of_relay) is None


def test_the_status_of_an_outbox_tells_how_old_its_oldest_event_is(url: str) -> None:
    filled(url, 0)

    def status(*options: str) -> Any:
        done = CliRunner().invoke(app, ["outbox", "status", url, *options])
        assert done.exit_code == 0, done.stderr
        return done

    assert json.loads(status("--json").stdout) == {"waiting": 0, "oldest_s": None}
    assert "the oldest" not in status().stderr
    filled(url, 2)
    found = json.loads(status("--json").stdout)
    assert found["waiting"] == 2
    assert 0 <= found["oldest_s"] < 600
    assert re.search(r"2 events wait in \S+, the oldest for [0-9.]+ s", status().stderr)


def test_the_command_serves_the_metrics_of_its_relay(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'shop.db'}"
    filled(url, 3)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "penstock.cli", "outbox", "relay", url, f"log:{tmp_path / 'log'}"]
    with subprocess.Popen([*command, "--metrics", f"127.0.0.1:{port}"], stderr=subprocess.PIPE, text=True) as process:
        try:

            def delivered() -> float | None:
                assert process.poll() is None, process.communicate()[1]
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                    return value_in(page.read().decode(), "penstock_outbox_delivered_total", outbox="outbox")
                return None

            wait_until(lambda: delivered() == 3, "all are delivered")
        finally:
            process.terminate()
            process.communicate(timeout=60)


def test_tables_show_their_rows_and_whether_they_are_kept_fresh() -> None:
    with MemoryStream(partitions=1) as stream:
        stream.create_topic("metered-users", 1)
        of_topic = {"topic": "metered-users"}
        with ps.Table(stream, "metered-users") as table:
            for number in range(5):
                stream.send("metered-users", b"x", str(number))
            table.wait_until_caught_up()
            assert metric("penstock_table_rows", **of_topic) == 5
            assert metric("penstock_table_caught_up", **of_topic) == 1
            assert metric("penstock_table_problem", **of_topic) == 0
            stream.admin().delete("metered-users")
            wait_until(lambda: metric("penstock_table_problem", **of_topic) == 1, "the problem is shown")
        assert metric("penstock_table_rows", **of_topic) is None


def test_a_projection_shows_when_its_version_is_built(tmp_path: Path) -> None:
    database = f"sqlite:{tmp_path / 'bank.db'}"
    with EventStore(f"log:{tmp_path / 'log'}", "accounts", Account, partitions=1) as store:
        store.append("a", [Deposited(1)], expected_version=0)
        projection = balances(store, database)
        of_projection = {"projection": "balances", "version": "1"}
        seen: list[float | None] = []
        deposited = projection._functions[Deposited]

        def watched(connection: Any, stored: StoredEvent) -> None:
            seen.append(metric("penstock_projection_built", **of_projection))
            deposited(connection, stored)

        projection._functions[Deposited] = watched
        thread = threading.Thread(target=projection.run)
        thread.start()
        try:
            wait_until(lambda: metric("penstock_projection_built", **of_projection) == 1, "it is built")
        finally:
            projection.stop()
            thread.join()
    assert seen == [0]
    assert metric("penstock_projection_built", **of_projection) is None
