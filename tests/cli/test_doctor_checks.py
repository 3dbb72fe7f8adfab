"""The checks of `penstock doctor`, each on a machine that is well and on one that is ill."""

from __future__ import annotations

import http.server
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from penstock.cli.checks import extras, machine, network
from penstock.cli.checks.extras import Extra
from penstock.cli.checks.finding import Finding, Level, ok
from penstock.cli.commands import doctor as examining
from penstock.errors import ConfigError
from tests.servers import Penstock


def only(findings: Sequence[Finding]) -> Finding:
    (finding,) = findings
    return finding


def named(findings: Sequence[Finding], what: str) -> Finding:
    return only([finding for finding in findings if finding.what == what])


def test_an_old_python_is_wrong() -> None:
    assert only(machine.check_python((3, 12, 1), "linux")).level is Level.OK
    assert only(machine.check_python((3, 10, 9), "linux")).level is Level.FAIL
    assert "WSL" in (only(machine.check_python((3, 12, 1), "win32")).fix or "")


@pytest.mark.parametrize(
    ("free_kb", "with_spark", "level"),
    [
        (8_000_000, True, Level.OK),
        (1_000_000, True, Level.WARN),
        (1_000_000, False, Level.OK),
        (100_000, False, Level.FAIL),
    ],
)
def test_memory_is_judged_by_what_is_free(tmp_path: Path, free_kb: int, with_spark: bool, level: Level) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {free_kb} kB\n")
    found = only(machine.check_memory(with_spark, tmp_path / "meminfo", tmp_path / "none"))
    assert found.level is level


def test_memory_is_what_the_container_leaves(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 64000000 kB\n")
    (tmp_path / "memory.max").write_text("536870912\n")
    (tmp_path / "memory.current").write_text("436870912\n")
    found = only(machine.check_memory(False, tmp_path / "meminfo", tmp_path / "memory.max"))
    assert (found.level, found.text) == (Level.FAIL, "95.4 MB free in this container")
    (tmp_path / "memory.max").write_text("max\n")
    assert only(machine.check_memory(True, tmp_path / "meminfo", tmp_path / "memory.max")).level is Level.OK


@pytest.mark.parametrize(
    ("limits", "level", "said"),
    [
        ((20_000, 20_000), Level.OK, ""),
        ((-1, -1), Level.OK, ""),
        ((800, 4096), Level.WARN, "ulimit -n 4096"),
        ((256, 100_000), Level.FAIL, "ulimit -n 4096"),
        ((256, 256), Level.FAIL, "hard limit is 256"),
    ],
)
def test_file_handles_are_counted_against_what_a_broker_opens(limits: tuple[int, int], level: Level, said: str) -> None:
    found = only(machine.check_handles(limits))
    assert found.level is level
    assert said in (found.fix or "")


def test_a_clock_that_jumps_is_doubtful_and_one_of_1970_is_wrong() -> None:
    times = iter([2_000_000_000.0, 2_000_000_000.0, 2_000_000_005.2])
    steady = iter([10.0, 10.2, 10.2])
    found = only(machine.check_clock(0.2, lambda: next(steady), lambda: next(times), lambda _: None))
    assert (found.level, found.text) == (Level.WARN, "it jumped by 5000 ms during the check")
    assert only(machine.check_clock(0, wall=lambda: 100.0)).level is Level.FAIL


def test_a_check_that_had_to_wait_for_its_turn_is_not_taken_for_a_clock_that_jumps() -> None:
    times = iter([2_000_000_000.0, 2_000_000_000.0, 2_000_000_003.0])
    steady = iter([10.0, 10.2, 13.1])
    assert only(machine.check_clock(0.2, lambda: next(steady), lambda: next(times), lambda _: None)).level is Level.OK


def test_the_folder_for_what_is_temporary_must_take_files(tmp_path: Path) -> None:
    assert named(machine.check_temporary(False, tmp_path, tmp_path / "none"), "temporary").level is Level.OK
    assert only(machine.check_temporary(False, tmp_path / "none")).level is Level.FAIL


def mounts(folder: Path, kind: str) -> Path:
    path = folder / "mounts"
    path.write_text(f"/dev/sda1 / ext4 rw 0 0\nx {folder} {kind} rw 0 0\n")
    return path


def test_a_data_folder_that_is_well_is_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    found = machine.check_data_folder(folder, lambda _: (10**12, 0, 10**12), mounts(tmp_path, "ext4"))
    assert named(found, "data folder").level is Level.OK
    assert named(found, "disk space").level is Level.OK
    assert "ms a sync (ext4)" in named(found, "disk sync").text
    assert list(folder.iterdir()) == []


def test_a_data_folder_that_is_not_there_is_judged_by_where_it_will_be_and_not_made(tmp_path: Path) -> None:
    found = machine.check_data_folder(tmp_path / "a" / "b")
    assert f"to be created in {tmp_path}" in named(found, "data folder").text
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_place_of_the_data_folder_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert only(machine.check_data_folder(tmp_path / "data")).level is Level.FAIL
    assert only(machine.check_data_folder(tmp_path / "data" / "deeper")).level is Level.FAIL


def test_a_data_folder_of_somebody_else_is_wrong(tmp_path: Path) -> None:
    def refused(_: Path) -> float:
        raise PermissionError(13, "Permission denied")  # which root, who may run this, never meets

    found = only(machine.check_data_folder(tmp_path, measure=refused))
    assert found.level is Level.FAIL
    assert "chown" in (found.fix or "")


def test_a_data_folder_for_everybody_is_doubtful(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "chmod o-w" in (named(machine.check_data_folder(tmp_path), "data folder").fix or "")


@pytest.mark.parametrize(("free", "level"), [(10**7, Level.FAIL), (10**9, Level.WARN), (10**10, Level.OK)])
def test_disk_space_is_judged_by_what_is_left(tmp_path: Path, free: int, level: Level) -> None:
    assert named(machine.check_data_folder(tmp_path, lambda _: (10**12, 0, free)), "disk space").level is level


@pytest.mark.parametrize(("kind", "said"), [("tmpfs", "in memory"), ("nfs4", "over a network")])
def test_a_log_in_memory_or_over_a_network_is_doubtful(tmp_path: Path, kind: str, said: str) -> None:
    found = named(machine.check_data_folder(tmp_path, mounts=mounts(tmp_path, kind)), "disk sync")
    assert found.level is Level.WARN
    assert said in found.text


def test_a_slow_sync_is_doubtful(tmp_path: Path) -> None:
    found = machine.check_data_folder(tmp_path, mounts=mounts(tmp_path, "ext4"), measure=lambda _: 0.4)
    slow = named(found, "disk sync")
    assert slow.level is Level.WARN
    assert "400.00 ms a sync" in slow.text
    assert "about 2 a second" in slow.text


def test_measuring_a_slow_disk_ends_soon(tmp_path: Path) -> None:
    now = [0.0]

    def slowly(_: int) -> None:
        now[0] += 0.4

    assert machine.measure_sync_s(tmp_path, lambda: now[0], slowly) == pytest.approx(0.4)
    assert now[0] < 1


def imports(**broken: str) -> extras.Import:
    return lambda modules, _: {module: broken.get(module) for module in modules}


KNOWN = {
    "arrow": Extra("arrow", {"numpy": ">=2.0", "pyarrow": ">=19"}),
    "redis": Extra("redis", {"redis": ">=5.2"}),
    "nats": Extra("nats", {"nats-py": ">=2.9"}),
}


def extras_with(versions: Mapping[str, str], **broken: str) -> dict[str, Finding]:
    found = extras.check_extras(1.0, KNOWN, versions.get, imports(**broken))
    return {finding.what: finding for finding in reversed(found)}


def test_extras_that_are_there_or_not_are_well() -> None:
    found = extras.check_extras(1.0, KNOWN, {"numpy": "2.4.6", "pyarrow": "26.0.1"}.get, imports())
    assert [finding.level for finding in found] == [Level.OK, Level.OK]
    assert found[0].text == "arrow installed"
    assert "not installed: redis, nats" in found[1].text


def test_an_extra_that_is_there_in_part_or_too_old_or_broken_is_told_with_what_to_install() -> None:
    part = extras_with({"numpy": "2.4"})["extra arrow"]
    assert (part.level, part.fix) == (Level.WARN, "pip install 'penstock[arrow]'")
    old = extras_with({"redis": "4.6.0"})["extra redis"]
    assert (old.level, old.text) == (Level.WARN, "redis 4.6.0 (wants >=5.2)")
    broken = extras_with({"redis": "6.0"}, redis="ImportError: no libssl")["extra redis"]
    assert (broken.level, broken.text) == (Level.FAIL, "redis: ImportError: no libssl")


def test_packages_for_which_there_was_no_time_are_named() -> None:
    found = extras.check_extras(1.0, KNOWN, {"redis": "6.0"}.get, lambda *_: {})
    assert "no time to import redis" in found[0].text


def test_what_extras_need_is_read_from_the_package_itself() -> None:
    lines = [
        "msgspec>=0.19",
        'numpy>=2.0; extra == "arrow"',
        'pandas<3,>=2.2 ; extra == "spark"',
        "penstock[arrow]; extra == 'spark'",
        'psycopg[binary,pool]>=3.2; extra == "postgres"',
        'numpy>=2.0; extra == "all"',
    ]
    found = extras.declared(lines)
    assert {name: extra.packages for name, extra in found.items()} == {
        "arrow": {"numpy": ">=2.0"},
        "postgres": {"psycopg": ">=3.2", "psycopg-pool": ""},
        "spark": {"pandas": "<3,>=2.2"},
    }
    packages = {package for extra in extras.declared().values() for package in extra.packages}
    assert packages <= set(extras.MODULES), "say what is imported of them"


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("2.2.3", "<3,>=2.2", True),
        ("3.0.0", "<3,>=2.2", False),
        ("2.1", ">=2.2", False),
        ("2.10", ">=2.9", True),
        ("5", ">=5.0.0", True),
        ("2.0rc1", "", True),
        (None, ">=1", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str | None, wanted: str, fits: bool) -> None:
    assert extras.satisfies(version, wanted) is fits


def test_a_package_that_takes_python_with_it_does_not_end_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text("import os; os._exit(7)")
    (tmp_path / "wrong.py").write_text("raise ImportError('no such symbol\\nmore')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    tried = extras.try_imports(["deadly", "wrong", "json"], 60.0)
    assert tried == {
        "deadly": "importing it crashes Python (exit code 7)",
        "wrong": "ImportError no such symbol",
        "json": None,
    }


def test_a_package_that_hangs_costs_only_the_time_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging.py").write_text("import threading; threading.Event().wait(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "hanging" not in extras.try_imports(["hanging"], 0.5)


def test_java_is_found_or_what_to_install_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'penstock[spark]'")
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    program = tmp_path / "jdk" / "bin" / "java"
    program.write_text("")
    program.chmod(0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="21.0.1"\n')
    monkeypatch.setattr("penstock.java.installed._installed", lambda: iter(()))
    found = only(machine.check_java({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": ""}))
    assert (found.level, found.text) == (Level.OK, f"21 (JAVA_HOME={tmp_path}/jdk)")
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="11.0.1"\n')
    found = only(machine.check_java({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": ""}))
    assert found.level is Level.WARN
    assert "Java 17 or newer" in found.text
    assert "JAVA_HOME" in (found.fix or "")


def test_a_java_home_that_does_not_fit_is_told_of(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'penstock[spark]'")
    (tmp_path / "java").write_text("")
    (tmp_path / "java").chmod(0o755)
    (tmp_path.parent / "release").write_text('JAVA_VERSION="17.0.1"\n')
    found = only(machine.check_java({"JAVA_HOME": str(tmp_path / "none"), "PATH": str(tmp_path)}))
    (tmp_path.parent / "release").unlink()
    assert found.level is Level.WARN
    assert "JAVA_HOME" in found.text


def test_the_connector_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'penstock[spark]'")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    assert "penstock spark jars" in (only(machine.check_connector()).fix or "")
    folder = tmp_path / "spark" / pyspark.__version__ / "connector"
    folder.mkdir(parents=True)
    (folder / "spark-sql-kafka.jar").write_text("")
    assert only(machine.check_connector()).level is Level.OK


@pytest.fixture
def web_port() -> Iterator[int]:
    """A port that something else than Kafka has."""

    class Silent(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_who_holds_a_port_is_found_while_it_opens_and_closes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text("head\n 0: 0100007F:2384 00000000:0000 0A 00:00 00:00 0 0 0 99 1\n")
    files = tmp_path / "17/fd"
    files.mkdir(parents=True)
    (tmp_path / "17/comm").write_text("java\n")
    for number in range(3):
        (files / str(number)).symlink_to("socket:[99]")
    there, closed = os.readlink, iter([True, True, False])

    def readlink(path: Path) -> str:
        if next(closed):
            raise FileNotFoundError(path)
        return there(path)

    monkeypatch.setattr(os, "readlink", readlink)
    assert network.holder(0x2384, tmp_path) == ", process 17 java"


def test_a_port_is_free_or_a_brokers_or_somebody_elses(web_port: int, server: Penstock) -> None:
    broker = int(server.bootstrap.rpartition(":")[2])
    free, ours, taken = network.check_ports(((free_port(), "serve"), (broker, "serve"), (web_port, "serve")))
    assert (free.level, free.text) == (Level.OK, "free, for penstock serve")
    assert ours.level is Level.OK
    assert "a Kafka broker answers" in ours.text
    assert taken.level is Level.WARN
    if sys.platform == "linux":
        assert f"process {os.getpid()} " in taken.text


def test_a_stream_that_answers_is_told_from_one_that_does_not(web_port: int, server: Penstock) -> None:
    answering = network.check_url(f"kafka://{server.bootstrap}", 20.0)
    assert [finding.level for finding in answering] == [Level.OK, Level.OK]
    assert "all 1 can be reached" in answering[1].text
    assert "does not answer" in only(network.check_url(f"kafka://127.0.0.1:{free_port()}", 5.0)).text
    assert only(network.check_url(f"kafka://127.0.0.1:{web_port}", 0.2)).level is Level.FAIL
    assert only(network.check_url("kafkaa://x", 5.0)).level is Level.FAIL


def test_a_log_is_not_started_to_see_whether_it_runs(tmp_path: Path) -> None:
    found = only(network.check_url(f"log:{tmp_path}/data", 5.0))
    assert (found.level, (tmp_path / "data").exists()) == (Level.OK, False)


def test_the_clock_of_a_broker_on_this_machine_is_ours(server: Penstock) -> None:
    found = only(network.check_skew(f"kafka://{server.bootstrap}", 20.0))
    assert found.level is Level.OK
    assert "give or take" in found.text


def test_checks_that_hang_or_break_cost_their_own_line() -> None:
    forever = threading.Event()

    def hang() -> list[Finding]:
        forever.wait(600)
        return []

    def breaks() -> list[Finding]:
        raise RuntimeError("oops")

    def refuses() -> list[Finding]:
        raise ConfigError("not so")

    found = examining.examine(
        {"one": lambda: [ok("one", "well")], "two": hang, "three": breaks, "four": refuses}, within_s=0.3
    )
    forever.set()
    assert [(finding.what, finding.level) for finding in found] == [
        ("one", Level.OK),
        ("two", Level.WARN),
        ("three", Level.FAIL),
        ("four", Level.FAIL),
    ]
    assert "RuntimeError: oops" in found[2].text
