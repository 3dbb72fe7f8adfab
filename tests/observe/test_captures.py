"""Captures of databases, as `penstock lag`, alerts and the console see them: from the reports in their stream."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app
from penstock.errors import ConfigError
from penstock.model.clock import SystemClock
from penstock.observe.captures import CaptureObserver
from penstock.observe.facts import CaptureFacts
from penstock.observe.stream_observer import StreamObserver
from penstock.tables import Capture, CaptureProgress
from penstock.tables.cdc import reports
from penstock.tables.cdc.delivery import forget_capture
from penstock.tables.cdc.mysql import changes as mysql_changes
from penstock.tables.cdc.mysql import connections as mysql_connections
from penstock.tables.cdc.mysql.changes import BinlogPosition
from penstock.tables.cdc.mysql.connections import parsed_url
from penstock.tables.cdc.mysql.logs import BinlogWatch
from penstock.tables.cdc.postgres import changes
from penstock.tables.cdc.reports import REPORTS, CaptureReport, Reporter
from penstock.testing.clock import VirtualClock
from tests.mariadb import fresh_database as fresh_mariadb
from tests.mariadb import shared_mariadb
from tests.servers import Penstock
from tests.tables.captured import CaptureProcess, fresh_database, wait_until
from tests.tables.captured_mysql import Database

MB = 1024 * 1024


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("captures")) as running:
        yield running


@pytest.fixture
def connection(broker: Penstock) -> Iterator[penstock.Connection]:
    with penstock.connect(f"kafka://{broker.bootstrap}") as opened:
        yield opened


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / f"{tmp_path.name.lower()}.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO users VALUES (1)")
    connection.close()
    return path


def look(connection: penstock.Connection, later_s: float = 0.0) -> dict[str, CaptureFacts]:
    observer = CaptureObserver()
    observer.use(connection)
    now_ms = SystemClock().wall_ms() + round(later_s * 1000)
    return observer.look([REPORTS], now_ms)


def test_a_capture_is_seen_while_it_runs_and_when_it_was_stopped_or_killed(
    connection: penstock.Connection, broker: Penstock, database: Path, tmp_path: Path
) -> None:
    process = CaptureProcess(f"sqlite:{database}", f"kafka://{broker.bootstrap}", "-t", "users", "--name", "seen", "-q")
    process.start()
    try:
        observer = StreamObserver(connection, pipelines=tmp_path)
        wait_until(lambda: _phase(observer) == "streaming", "it is seen")
        facts = observer.look().captures["seen"]
        assert (facts.source, facts.tables, facts.time_to_loss_s) == (f"sqlite:{database}", 1, None)
        process.terminate()
        wait_until(lambda: _phase(observer) == "stopped", "its end is seen")
        process.start()
        wait_until(lambda: _phase(observer) == "streaming", "it is seen again")
    finally:
        process.kill()
        observer.close()
    assert look(connection, later_s=30.0)["seen"].phase == "streaming"
    assert look(connection, later_s=60.0)["seen"].phase == "dead"


def _phase(observer: StreamObserver) -> str | None:
    found = observer.look().captures.get("seen")
    return None if found is None else found.phase


def test_a_capture_that_cannot_go_on_says_why(
    connection: penstock.Connection, broker: Penstock, database: Path, tmp_path: Path
) -> None:
    capture = Capture(f"sqlite:{database}", f"kafka://{broker.bootstrap}", tables=["users"], name="failing")
    errors: list[BaseException] = []

    def run() -> None:
        try:
            capture.run()
        except ConfigError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: capture.progress.phase == "streaming", "it streams")
    with sqlite3.connect(database) as writing:
        writing.execute("DROP TABLE users")
    writing.close()
    thread.join()
    facts = look(connection, later_s=3600.0)["failing"]
    assert facts.phase == "failed"
    assert facts.error == str(errors[0])


def test_a_capture_of_postgresql_reports_how_long_there_is_room_for_its_log(
    connection: penstock.Connection, broker: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "LOOK_S", 0.05)
    monkeypatch.setattr(reports, "REPORT_S", 0.05)
    with fresh_database() as url, psycopg.connect(url, autocommit=True) as database:
        database.execute("CREATE TABLE users (id int PRIMARY KEY, body text)")
        capture = Capture(url, f"kafka://{broker.bootstrap}", tables=["users"], name="roomy", heartbeat_s=0.1)
        thread = threading.Thread(target=capture.run)
        thread.start()
        try:
            wait_until(lambda: look(connection).get("roomy") is not None, "it reports")
            number = iter(range(10**9))

            def is_measured() -> bool:
                database.execute("INSERT INTO users VALUES (%s, repeat('x', 1000))", (next(number),))
                return look(connection, later_s=3600.0)["roomy"].time_to_loss_s is not None

            wait_until(is_measured, "the rate of writes is known")
            running = look(connection)["roomy"]
        finally:
            capture.close()
            thread.join()
    assert running.phase == "streaming"
    assert running.room_bytes is not None
    assert running.behind_bytes is not None
    assert running.time_to_loss_s is None, "it keeps up"
    assert "penstock@" in running.source


@contextlib.contextmanager
def kept_for(database: Database, seconds: int) -> Iterator[None]:
    """The server keeps its binlog so long, not for ever."""
    database.run(f"SET GLOBAL binlog_expire_logs_seconds = {seconds}")
    try:
        yield
    finally:
        database.run("SET GLOBAL binlog_expire_logs_seconds = 0")


@pytest.fixture
def mariadb() -> Iterator[Database]:
    with fresh_mariadb("observed") as url, contextlib.closing(Database(url)) as database:
        yield database


def test_a_capture_of_mariadb_reports_how_long_its_binlog_is_kept(
    connection: penstock.Connection, broker: Penstock, mariadb: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_changes, "LOOK_S", 0.05)
    monkeypatch.setattr(reports, "REPORT_S", 0.05)
    mariadb.run("CREATE TABLE users (id int PRIMARY KEY)", "INSERT INTO users VALUES (1), (2), (3)")
    url = f"{shared_mariadb().url}/observed"
    with kept_for(mariadb, 86_400):
        capture = Capture(url, f"kafka://{broker.bootstrap}", tables=["users"], name="kept", snapshot_rows=1)
        thread = threading.Thread(target=capture.run)
        thread.start()
        try:
            wait_until(lambda: _phase_of(connection, "kept") == "streaming", "it streams")
            mariadb.run("INSERT INTO users VALUES (4)")
            wait_until(lambda: capture.progress.changes == 1, "the change is captured")
            running = look(connection)["kept"]
            dead = look(connection, later_s=3600.0)["kept"]
            mariadb.run("SET GLOBAL binlog_expire_logs_seconds = 43200")
            wait_until(lambda: (_left_s(connection, "kept") or 0) < 50_000, "it follows the setting")
        finally:
            capture.close()
            thread.join()
    found = [msgspec.json.decode(each.value, type=CaptureReport) for each in connection.read(REPORTS) if each.value]
    snapshot = next(each for each in found if (each.name, each.phase) == ("kept", "snapshot"))
    assert snapshot.time_to_loss_s == pytest.approx(86_400, abs=60), "nothing is confirmed during the snapshot"
    assert (running.phase, running.time_to_loss_s) == ("streaming", None), "it keeps up"
    assert dead.phase == "dead"
    assert dead.time_to_loss_s == pytest.approx(86_400 - 3_600, abs=60)
    assert look(connection, later_s=90_000.0)["kept"].time_to_loss_s == 0.0, "a stopped one"


def _phase_of(connection: penstock.Connection, name: str) -> str | None:
    found = look(connection).get(name)
    return None if found is None else found.phase


def _left_s(connection: penstock.Connection, name: str) -> float | None:
    """How long there is time if the capture dies now."""
    return look(connection, later_s=60.0)[name].time_to_loss_s


def test_changes_in_the_binlog_are_kept_from_their_commit_on(mariadb: Database) -> None:
    url = parsed_url(f"{shared_mariadb().url}/observed")
    server = mysql_connections.connect(url, "the server")
    (file, end), now_s = mariadb.run("SHOW MASTER STATUS")[0][:2], SystemClock().wall_ms() // 1000
    mariadb.run("CREATE TABLE users (id int PRIMARY KEY)")
    progress = CaptureProgress()

    def left_s(position: BinlogPosition, watch: BinlogWatch) -> float | None:
        watch.look(server, position, progress)
        return progress.time_to_loss_s

    with contextlib.closing(server):
        before = BinlogPosition(file, end, at_s=now_s - 3600)
        assert left_s(before, BinlogWatch()) is None, "the server keeps its binlog for ever"
        with kept_for(mariadb, 86_400):
            assert left_s(before, BinlogWatch()) == pytest.approx(82_800, abs=60)
            assert progress.kept_until_ms == pytest.approx((now_s + 82_800) * 1000, abs=60_000)
            watch = BinlogWatch()
            assert left_s(BinlogPosition(*mariadb.run("SHOW MASTER STATUS")[0][:2]), watch) == 86_400, "it is even"
            assert left_s(before, watch) == pytest.approx(86_400, abs=60), "so what follows is younger"
            assert left_s(BinlogPosition("b.999999", 4, at_s=now_s), BinlogWatch()) == 0.0, "its file is gone"
            assert progress.lag_bytes is None
        assert left_s(before, BinlogWatch()) is None


def test_the_time_to_loss_of_a_binlog_is_that_of_the_present_course() -> None:
    clock = VirtualClock()
    reporter = Reporter("shop", "mariadb://db/shop", clock=clock)
    progress = CaptureProgress(phase="streaming")

    def reported(read_s: float, behind_bytes: int) -> float | None:
        """The report after 10 s in which the capture has read changes of so many seconds."""
        clock.advance(10)
        progress.lag_bytes = behind_bytes
        progress.kept_until_ms = (progress.kept_until_ms or clock.wall_ms() + 1_000_000) + round(read_s * 1000)
        return msgspec.json.decode(reporter.report(progress, "streaming"), type=CaptureReport).time_to_loss_s

    assert reported(0, 10 * MB) is None
    assert [reported(10, 100 * MB) for _ in range(10)][-1] is None, "it reads as fast as the server writes"
    assert [reported(5, 100 * MB) for _ in range(7)][-1] == pytest.approx((1_000 - 10 - 7 * 5) / 0.5, rel=0.02)
    assert [reported(20, 90 * MB) for _ in range(7)][-1] is None, "it catches up"


def test_time_to_loss_is_that_of_the_present_course() -> None:
    clock = VirtualClock()
    reporter = Reporter("shop", "postgresql://db/shop", clock=clock)
    progress = CaptureProgress(phase="snapshot", room_bytes=1000 * MB, written_bytes_per_s=MB, time_to_loss_s=1000.0)

    def reported() -> CaptureReport:
        return msgspec.json.decode(reporter.report(progress, progress.phase), type=CaptureReport)

    assert reporter.due(progress) is not None
    assert reporter.due(progress) is None
    assert reported().time_to_loss_s == 1000.0
    progress.phase = "streaming"
    assert reporter.due(progress) is not None, "the phase has changed"
    for behind in (10 * MB, 60 * MB):  # near enough
        clock.advance(10)
        progress.lag_bytes = behind
        assert reported().time_to_loss_s is None
    for step in range(1, 8):  # 5 MB a second more
        clock.advance(10)
        progress.lag_bytes = 100 * MB + step * 50 * MB
        found = reported().time_to_loss_s
    assert found == pytest.approx(1000 / 5)
    progress.lag_bytes = 90 * MB
    clock.advance(10)
    assert reported().time_to_loss_s is None, "it catches up"


def test_the_time_to_loss_of_a_dead_capture_runs_out(connection: penstock.Connection) -> None:
    now_ms = SystemClock().wall_ms()
    report = CaptureReport(
        name="gone", source="postgresql://db/shop", phase="streaming", at_ms=now_ms, room_bytes=7200 * MB,
        behind_bytes=5, written_bytes_per_s=float(MB),
    )  # fmt: skip
    _send(connection, report)
    assert look(connection)["gone"].time_to_loss_s is None
    assert look(connection, later_s=3600)["gone"].time_to_loss_s == pytest.approx(3600, abs=60)
    assert look(connection, later_s=10_000)["gone"].time_to_loss_s == 0.0
    _send(connection, report, is_removed=True)
    assert "gone" not in look(connection)


def _send(connection: penstock.Connection, report: CaptureReport, *, is_removed: bool = False) -> None:
    connection.admin().provide(REPORTS, 1, {"cleanup.policy": "compact"})
    value = None if is_removed else msgspec.json.encode(report)
    connection.send(REPORTS, value, key=report.name).result(30)


def test_lag_shows_captures_and_fails_when_one_will_lose_changes(
    connection: penstock.Connection, broker: Penstock
) -> None:
    now_ms = SystemClock().wall_ms()
    report = CaptureReport(
        name="ending", source="postgresql://db/shop", phase="stopped", at_ms=now_ms - 600_000, room_bytes=4200 * MB,
        behind_bytes=3 * MB, written_bytes_per_s=float(MB),
    )  # fmt: skip
    _send(connection, report)
    url = f"kafka://{broker.bootstrap}"

    def run(*arguments: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, ["lag", "--url", url, "--for", "0s", *arguments])
        return done.exit_code, done.stdout, done.stderr

    code, out, _ = run()
    (line,) = [line for line in out.splitlines() if line.startswith("ending")]
    assert (code, line.split()[1]) == (0, "postgresql://db/shop")
    assert "1 h" in line or "59 min" in line
    assert [row["phase"] for row in json.loads(run("--json")[1]) if row.get("capture") == "ending"] == ["stopped"]
    assert run("--fail-if-loss-within", "30m")[0] == 0
    code, _, err = run("--fail-if-loss-within", "2h")
    assert code == 1
    assert "Capture ending (stopped) will lose changes of postgresql://db/shop in" in err
    assert "or raise max_slot_wal_keep_size" in err
    of_mariadb = msgspec.structs.replace(
        report, source="mariadb://db/shop", room_bytes=None, kept_until_ms=now_ms + 3_600_000
    )
    _send(connection, of_mariadb)
    code, out, err = run("--fail-if-loss-within", "2h")
    assert code == 1
    assert "will lose changes of mariadb://db/shop in" in err
    assert "or raise binlog_expire_logs_seconds" in err
    lost = msgspec.structs.replace(report, phase="failed", is_lost=True, error="the slot is gone")
    _send(connection, lost)
    code, out, err = run("--fail-if-loss-within", "1s")
    assert code == 1
    assert "Capture ending has lost changes: the slot is gone" in err
    assert "lost" in out
    _send(connection, lost, is_removed=True)


def test_a_capture_that_was_stopped_for_good_is_forgotten(
    connection: penstock.Connection, broker: Penstock, database: Path
) -> None:
    url = f"kafka://{broker.bootstrap}"
    Capture(f"sqlite:{database}", url, tables=["users"], name="old", snapshot="only").run()
    assert "old" not in look(connection), "a snapshot alone leaves nothing that could be lost"

    def forget(name: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["cdc", "forget", name, url])
        return done.exit_code, done.stderr

    assert forget("old")[0] == 0
    assert "penstock.cdc.old" not in connection.topics()
    with pytest.raises(ConfigError, match="has no capture of the name 'old'"):
        forget_capture(connection, "old")
    capture = Capture(f"sqlite:{database}", url, tables=["users"], name="running")
    thread = threading.Thread(target=capture.run)
    thread.start()
    try:
        wait_until(lambda: "running" in look(connection), "it reports")
        code, said = forget("running")
        assert code == 1
        assert "capture 'running' runs" in said
    finally:
        capture.close()
        thread.join()
    assert look(connection)["running"].phase == "stopped"
    assert forget("running")[0] == 0
    assert "running" not in look(connection)
