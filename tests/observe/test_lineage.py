"""OpenLineage events of apps: what they say, and that no endpoint slows or ends a run."""

from __future__ import annotations

import datetime
import logging
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.abc import Dataset
from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.errors import ConfigError, MissingExtraError
from penstock.model.observing import OBSERVED
from penstock.observe import lineage
from penstock.observe.lineage import OpenLineageReporter, report_lineage, stop_lineage
from penstock.streams.datasets import file_dataset, table_dataset, topic_dataset, url_dataset
from tests.lineage_server import WAIT_S, LineageServer, datasets
from tests.servers import Penstock


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(lineage.NAMESPACE, raising=False)
    yield
    stop_lineage()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[LineageServer]:
    with LineageServer() as server:
        monkeypatch.setenv("OPENLINEAGE_URL", server.url)
        yield server
        stop_lineage()


def app_on(url: str, **options: Any) -> App:
    with penstock.connect(url) as stream:
        stream.send("orders", b"1").result(WAIT_S)
    return App(url, group="billing", checkpoints=MemoryCheckpoints(), **options)


def test_a_handler_reports_its_start_and_its_end_with_its_topics(server: Penstock, endpoint: LineageServer) -> None:
    app = app_on(f"kafka://{server.bootstrap}")

    @app.handle("orders", to="receipts", order="none")
    def bill(order: bytes) -> bytes:
        return order

    report_lineage()
    app.run(end="latest")
    start, complete = endpoint.next(), endpoint.next()
    assert endpoint.paths == ["/api/v1/lineage"] * 2
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == complete["run"]["runId"]
    uuid.UUID(start["run"]["runId"])
    for event in (start, complete):
        assert event["job"]["namespace"] == "penstock"
        assert event["job"]["name"].startswith("billing.")
        assert event["job"]["name"].endswith("bill")
        job_type = event["job"]["facets"]["jobType"]
        assert (job_type["integration"], job_type["jobType"], job_type["processingType"]) == (
            "PENSTOCK",
            "HANDLER",
            "BATCH",
        )
        assert datasets(event, "inputs") == [(f"kafka://{server.bootstrap}", "orders")]
        assert datasets(event, "outputs") == [(f"kafka://{server.bootstrap}", "receipts")]
        assert event["producer"].startswith("https://")
        assert event["producer"].endswith(penstock.__version__)
        assert re.fullmatch(r"https://openlineage.io/spec/2-.*RunEvent", event["schemaURL"])
        assert datetime.datetime.fromisoformat(event["eventTime"]).tzinfo is not None
        assert event["run"]["facets"]["processing_engine"]["name"] == "Penstock"


def test_an_app_that_is_stopped_aborts_its_runs(endpoint: LineageServer) -> None:
    app = app_on("memory:aborted")

    @app.handle("orders")
    def bill(order: bytes) -> None: ...

    report_lineage("shop")
    thread = app.start()
    start = endpoint.next()
    assert start["job"]["namespace"] == "shop"
    assert start["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    app.stop()
    thread.join(WAIT_S)
    assert endpoint.next()["eventType"] == "ABORT"
    assert endpoint.all() == []


def test_an_error_that_ends_an_app_is_reported_and_the_other_handlers_are_aborted(endpoint: LineageServer) -> None:
    app = app_on("memory:failed")

    @app.handle("orders", dead_letters=False, retry=1)
    def fails(order: bytes) -> None:
        raise ValueError("no such customer")

    @app.handle("returns")
    def waits(order: bytes) -> None: ...

    with penstock.connect("memory:failed") as stream:
        stream.create_topic("returns")
    report_lineage()
    with pytest.raises(Exception, match="no such customer"):
        app.run()
    stop_lineage()
    ends = {each["job"]["name"].rpartition(".")[2]: each for each in endpoint.all() if each["eventType"] != "START"}
    assert {name: each["eventType"] for name, each in ends.items()} == {"fails": "FAIL", "waits": "ABORT"}
    error = ends["fails"]["run"]["facets"]["errorMessage"]
    assert "no such customer" in error["message"]
    assert error["programmingLanguage"] == "PYTHON"


def test_a_handler_of_several_topics_is_one_run_and_topics_of_a_pattern_follow(endpoint: LineageServer) -> None:
    app = app_on("memory:several")
    with penstock.connect("memory:several") as stream:
        stream.create_topic("returns")
        stream.create_topic("audit.eu")

    @app.handle(["orders", "returns"])
    def both(value: bytes) -> None: ...

    @app.handle(re.compile(r"audit\..*"))
    def audits(value: bytes) -> None: ...

    report_lineage()
    app.run(end="latest")
    stop_lineage()
    events = endpoint.all()
    starts = {each["job"]["name"].rpartition(".")[2]: each for each in events if each["eventType"] == "START"}
    ends = {each["job"]["name"].rpartition(".")[2]: each for each in events if each["eventType"] == "COMPLETE"}
    assert sorted(starts) == sorted(ends) == ["audits", "both"]
    assert datasets(starts["both"], "inputs") == [("memory:several", "orders"), ("memory:several", "returns")]
    assert datasets(ends["audits"], "inputs") == [("memory:several", "audit.eu")]


def test_an_app_is_silent_unless_it_is_asked_to_report(endpoint: LineageServer) -> None:
    app = app_on("memory:silent")

    @app.handle("orders")
    def bill(order: bytes) -> None: ...

    app.run(end="latest")
    assert OBSERVED.lineage is None
    assert endpoint.all() == []


def test_an_endpoint_that_refuses_is_logged_once_and_the_app_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handled = []
    app = app_on("memory:refused")

    @app.handle("orders")
    def bill(order: bytes) -> None:
        handled.append(order)

    with LineageServer(status=400) as refusing:
        monkeypatch.setenv("OPENLINEAGE_URL", refusing.url)
        report_lineage()
        with caplog.at_level(logging.WARNING, "penstock.observe.lineage"):
            app.run(end="latest")
            stop_lineage()
    assert handled == [b"1"]
    assert len(refusing.all()) == 2
    lost = [each.getMessage() for each in caplog.records if each.name == "penstock.observe.lineage"]
    assert len(lost) == 1
    assert "400" in lost[0]


def test_an_endpoint_that_does_not_answer_delays_neither_the_app_nor_its_exit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_on("memory:hanging")

    @app.handle("orders")
    def bill(order: bytes) -> None: ...

    with LineageServer(hangs=True) as hanging:
        monkeypatch.setenv("OPENLINEAGE_URL", hanging.url)
        monkeypatch.setattr(lineage, "FLUSH_S", 0.05)
        report_lineage()
        app.run(end="latest")
        assert hanging.requested.wait(WAIT_S)
        stop_lineage()
        assert hanging.all() == [], "both returned although nothing was answered"
    assert "did not take all events" in caplog.text


def test_a_queue_that_is_full_drops_events_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck:
        def __init__(self) -> None:
            self.entered = threading.Event()
            self.released = threading.Event()

        def emit(self, event: object) -> None:
            self.entered.set()
            self.released.wait(WAIT_S)

        def close(self, timeout: float) -> bool:
            return True

    monkeypatch.setattr(lineage, "_MOST_EVENTS", 2)
    client: Any = Stuck()
    reporter = OpenLineageReporter(client, "test")
    reporter.start("a", "HANDLER", [], [], ends=True)
    assert client.entered.wait(WAIT_S)
    for _ in range(5):
        reporter.start("b", "HANDLER", [], [], ends=True)
    client.released.set()
    reporter.close()
    assert caplog.text.count("events are dropped") == 1


def test_a_program_without_the_client_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[lineage\]'"):
        report_lineage()
    assert OBSERVED.lineage is None


def test_settings_that_the_client_rejects_are_an_error_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "openlineage.yml").write_text("transport: {type: carrier-pigeon}\n")
    with pytest.raises(ConfigError, match="OpenLineage rejected its settings"):
        report_lineage()


def test_the_exit_of_a_program_sends_what_waits_and_penstock_run_has_an_option(
    endpoint: LineageServer, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import penstock\n"
        "with penstock.connect('memory:m') as stream: stream.send('orders', b'1').result(5)\n"
        "app = penstock.App('memory:m', group='billing')\n"
        "@app.handle('orders')\n"
        "def bill(order: bytes) -> None: ...\n"
        "app.run(end='latest')\n"
    )
    subprocess.run(
        [sys.executable, "-m", "penstock.cli", "run", str(program), "--lineage"],
        check=True,
        capture_output=True,
        timeout=WAIT_S * 2,
    )
    assert [each["eventType"] for each in endpoint.all()] == ["START", "COMPLETE"]


def test_a_program_that_is_told_to_end_reports_that_before_it_exits(endpoint: LineageServer, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import penstock\n"
        "from penstock.observe import report_lineage\n"
        "with penstock.connect('memory:m') as stream: stream.send('orders', b'1').result(5)\n"
        "app = penstock.App('memory:m', group='billing')\n"
        "@app.handle('orders')\n"
        "def bill(order: bytes) -> None: ...\n"
        "report_lineage()\n"
        "app.run()\n"
    )
    with subprocess.Popen([sys.executable, str(program)]) as running:
        try:
            assert endpoint.next()["eventType"] == "START"
            running.send_signal(signal.SIGTERM)
            assert running.wait(WAIT_S) == 0
        finally:
            running.kill()
    assert [each["eventType"] for each in endpoint.all()] == ["ABORT"]


def test_nothing_of_openlineage_is_loaded_until_it_is_asked_for() -> None:
    program = (
        "import sys, penstock, penstock.app, penstock.observe.lineage\n"
        "print([name for name in sys.modules if name.startswith('openlineage')])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=WAIT_S)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("found", "namespace", "name"),
    [
        (topic_dataset("kafka://a:9092,b:9093?x=y", "orders"), "kafka://a:9092", "orders"),
        (topic_dataset("log:/data/shop", "orders"), "log:/data/shop", "orders"),
        (topic_dataset("redis://ann:secret@host:6379/2?x=y", "orders"), "redis://host:6379/2", "orders"),
        (url_dataset("amqp://ann:secret@host:5672/jobs"), "amqp://host:5672", "jobs"),
        (url_dataset("memory:jobs"), "memory", "jobs"),
        (url_dataset("https://host/hook/a?token=x"), "https://host", "hook/a"),
        (
            table_dataset("postgresql://ann:pw@db/shop?sslmode=require", "spend"),
            "postgres://db:5432",
            "shop.public.spend",
        ),
        (table_dataset("postgresql://db:6432/shop", "own.spend"), "postgres://db:6432", "shop.own.spend"),
        (table_dataset("postgresql://[::1]/shop", "spend"), "postgres://[::1]:5432", "shop.public.spend"),
        (table_dataset("sqlite:/data/shop.db", "spend"), "sqlite:/data/shop.db", "spend"),
        (file_dataset("/data/out/"), "file", "/data/out"),
        (file_dataset("s3a://bucket/out/spend/"), "s3://bucket", "out/spend"),
        (file_dataset("hdfs://name:8020/out"), "hdfs://name:8020", "/out"),
    ],
)
def test_datasets_have_the_names_of_openlineage_and_no_credentials(found: Dataset, namespace: str, name: str) -> None:
    assert (found.namespace, found.name) == (namespace, name)
