"""The session builder: what it chooses, what it takes from others, and what it refuses."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import py4j
import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.errors import ConfigError, ConnectorMissingError
from penstock.spark.run.settings import RunSettings, running_with
from penstock.spark.sessions import fork_server
from penstock.spark.sessions import opening as worker_sockets
from penstock.spark.sessions.defaults import (
    available_cores,
    defaults,
    local_cores,
    lost_host_settings,
    quiet_logging,
    site_defaults,
)
from penstock.spark.sessions.opening import active_session, has_connector, session, socket_settings, warm_workers
from penstock.spark.sessions.worker_environment import python_for_spark

CHILD = Path(__file__).with_name("session_child.py")
CHILD_TIMEOUT_S = 240.0
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


@pytest.fixture
def shuffle_partitions(spark: SparkSession) -> Iterator[str]:
    """The setting that a test changes, put back afterwards."""
    before = str(spark.conf.get(SHUFFLE_PARTITIONS))
    yield before
    spark.conf.set(SHUFFLE_PARTITIONS, before)


def test_a_session_keeps_time_in_utc_and_state_in_rocksdb(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert str(spark.conf.get("spark.sql.streaming.stateStore.providerClass")).endswith("RocksDBStateStoreProvider")
    assert spark.conf.get("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled") == "true"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.sparkContext.uiWebUrl is None


def test_a_session_on_this_machine_is_reached_from_this_machine_only(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == conf.get("spark.driver.bindAddress") == "127.0.0.1"


def test_its_workers_are_reached_through_a_folder_that_nobody_else_may_enter(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get(worker_sockets.ENABLED) == "true"
    folder = Path(str(conf.get(worker_sockets.FOLDER)))
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert any(stat.S_ISSOCK(file.stat().st_mode) for file in folder.iterdir())


def test_what_was_said_of_sockets_counts_and_their_paths_are_short_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert socket_settings({worker_sockets.ENABLED: "false"}) == socket_settings({worker_sockets.FOLDER: "/x"}) == {}
    assert socket_settings({}).keys() == {worker_sockets.ENABLED, worker_sockets.FOLDER}
    monkeypatch.setattr(worker_sockets, "_folder", lambda: "/" + 60 * "x")
    assert socket_settings({}) == {}


def test_workers_run_the_python_that_runs_the_driver(spark: SparkSession) -> None:
    def executable(_: Any) -> str:
        import sys

        return sys.executable

    assert spark.sparkContext.parallelize([0], 1).map(executable).collect() == [sys.executable]


def test_workers_import_pyspark_from_where_the_driver_has_it_from(spark: SparkSession) -> None:
    def found(_: Any) -> tuple[str, str, list[str]]:
        import sys

        import py4j
        import pyspark

        return pyspark.__file__, py4j.__file__, [each for each in sys.path if each.endswith((".zip", ".jar"))]

    ((of_pyspark, of_py4j, archives),) = spark.sparkContext.parallelize([0], 1).map(found).collect()
    assert (of_pyspark, of_py4j) == (pyspark.__file__, py4j.__file__)
    assert [each for each in archives if "pyspark" in each] == []


@pytest.mark.skipif(sys.platform != "linux", reason="the fork server needs Linux")
def test_workers_are_forked_by_the_server_with_random_numbers_of_their_own(spark: SparkSession) -> None:
    def origin(_: Any) -> Iterator[tuple[int, int, float]]:
        import os
        from pathlib import Path

        import numpy

        daemon = os.getppid()
        server = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
        yield os.getpid(), server, float(numpy.random.random())

    first, second = spark.sparkContext.parallelize([0, 1], 2).barrier().mapPartitions(origin).collect()
    folder = worker_sockets._folder()
    assert {first[1], second[1]} == {fork_server._started[folder].pid}
    assert first[0] != second[0]
    assert first[2] != second[2]
    said = Path(folder, fork_server.LOG).read_text()
    assert [line for line in said.splitlines() if "['-c'" not in line] == [], "Spark started a process that was refused"


def test_an_interpreter_for_workers_keeps_the_rest_of_the_path_and_its_arguments(tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    home = str(Path(pyspark.__file__).parent)
    script = python_for_spark(home, str(folder))
    assert script == str(folder / "python")
    mine = [str(tmp_path / "my modules"), str(tmp_path / "mine.zip")]
    given = [f"{home}/python/lib/pyspark.zip", mine[0], f"{home}/jars/spark-core_2.13-4.3.0.jar", mine[1]]
    done = subprocess.run(
        [script, "-c", "import json, sys; print(json.dumps([sys.executable, sys.argv[1:], sys.path]))", "a b", "*"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(given)},
        capture_output=True,
        text=True,
        check=True,
    )
    executable, arguments, path = json.loads(done.stdout)
    assert (executable, arguments) == (sys.executable, ["a b", "*"])
    assert path[1:3] == mine
    assert not any(each.startswith(f"{home}/") for each in path)


def test_the_archives_of_another_spark_are_left_in_the_path(tmp_path: Path) -> None:
    assert python_for_spark(str(tmp_path), str(tmp_path)) == sys.executable
    assert python_for_spark(str(Path(pyspark.__file__).parent), str(tmp_path / "missing")) == sys.executable


def test_the_active_session_is_returned_with_what_can_be_changed(spark: SparkSession, shuffle_partitions: str) -> None:
    assert session(conf={SHUFFLE_PARTITIONS: 7}) is not None
    assert spark.conf.get(SHUFFLE_PARTITIONS) == "7"
    assert active_session() is not None


def test_settings_of_the_run_win_over_those_of_the_program(spark: SparkSession, shuffle_partitions: str) -> None:
    with running_with(RunSettings(conf={SHUFFLE_PARTITIONS: "5"}, master="local[2]")):
        session(conf={SHUFFLE_PARTITIONS: "9"}, master="local[64]")
    assert spark.conf.get(SHUFFLE_PARTITIONS) == "5"


@pytest.mark.parametrize(
    ("master", "conf", "complaint"),
    [
        ("local[7]", {}, r"the master is local\[2\], not local\[7\]"),
        (None, {"spark.master": "spark://example:7077"}, "not spark://example:7077"),
        (None, {"spark.driver.memory": "13g"}, "spark.driver.memory is 1g, not 13g"),
        (None, {"spark.ui.port": 4555}, "spark.ui.port is not set, not 4555"),
        ("local[2]", {"spark.master": "local[3]"}, "two masters"),
        ("nonsense", {}, "'nonsense' is not a master of Spark: use local"),
        (None, {SHUFFLE_PARTITIONS: "many"}, f"{SHUFFLE_PARTITIONS}=many was rejected by Spark"),
        (None, {"spark.x": ["a"]}, r"spark.x=\['a'\]: settings of Spark are strings"),
    ],
)
def test_what_a_running_session_cannot_be_is_named(
    spark: SparkSession, master: str | None, conf: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        session(master=master, conf=conf)


def test_asking_for_what_the_session_is_anyway_is_no_error(spark: SparkSession) -> None:
    same = session(master="local[2]", conf={"spark.driver.memory": "1g", "spark.ui.enabled": False})
    assert same.sparkContext is spark.sparkContext


def test_a_connector_that_is_not_there_is_demanded_in_vain(spark: SparkSession) -> None:
    if has_connector(spark):
        assert session(connector=True).sparkContext is spark.sparkContext
    else:
        with pytest.raises(ConfigError, match="Kafka connector is not in it"):
            session(connector=True)


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="Spark Connect"):
        session(conf={"spark.remote": "sc://example"})
    monkeypatch.setenv("SPARK_REMOTE", "sc://example")
    with pytest.raises(ConfigError, match="Spark Connect"):
        session()


def test_workers_are_warmed_by_a_job_of_their_own(spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    warming = warm_workers(spark)
    warming.join(120)
    assert not warming.is_alive()
    assert set(tracker.getJobIdsForGroup(None)) - before


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[ 3 , 2 ]", 3),
        ("local[*]", available_cores()),
        ("local[*,4]", available_cores()),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_the_cores_of_a_master(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores


def test_a_cluster_is_not_bound_to_loopback_and_keeps_its_shuffle_partitions() -> None:
    assert defaults("local[3]")[SHUFFLE_PARTITIONS] == "3"
    on_a_cluster = defaults("spark://host:7077")
    assert SHUFFLE_PARTITIONS not in on_a_cluster
    assert "spark.driver.bindAddress" not in on_a_cluster


def test_the_machines_own_settings_are_read(tmp_path: Path) -> None:
    assert site_defaults("/nowhere", {"SPARK_CONF_DIR": str(tmp_path)}) == {}
    assert "log4j2.properties" in quiet_logging("/nowhere", {"SPARK_CONF_DIR": str(tmp_path)}).popitem()[1]
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\n\nspark.master   spark://example:7077\nspark.a=1\nspark.b: two words \n  spark.c\tthree=3\n"
    )
    (tmp_path / "log4j2.properties").touch()
    assert site_defaults("/nowhere", {"SPARK_CONF_DIR": str(tmp_path)}) == {
        "spark.master": "spark://example:7077",
        "spark.a": "1",
        "spark.b": "two words",
        "spark.c": "three=3",
    }
    assert quiet_logging("/nowhere", {"SPARK_CONF_DIR": str(tmp_path)}) == {}


class Told:
    """What a process of its own found, in which sessions came and went."""

    def __init__(self, tmp_path: Path) -> None:
        (tmp_path / "spark-defaults.conf").write_text(f"{SHUFFLE_PARTITIONS} 11\nspark.sql.session.timeZone CET\n")
        environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path), "PENSTOCK_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, str(CHILD)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=CHILD_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.facts: dict[str, Any] = {}
        for line in done.stdout.splitlines():
            self.facts.update(json.loads(line))
        self.err = done.stderr


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(tmp_path_factory.mktemp("child"))


def test_no_java_is_said_before_anything_is_started(told: Told) -> None:
    assert told.facts["without Java"].startswith("JavaMissingError: Spark needs Java 17 or newer; found none")


def test_no_connector_is_said_before_anything_is_started(told: Told) -> None:
    assert told.facts["without connector"].startswith(ConnectorMissingError.__name__)
    assert "penstock spark jars" in told.facts["without connector"]


def test_a_jvm_that_does_not_start_is_said_and_another_can_follow(told: Told) -> None:
    assert "PipelineError: Spark's JVM exited while it started on local[1]" in told.facts["nonsense"]
    assert told.facts["first"]["master"] == "local[1]"


def test_the_machines_settings_count_for_more_than_ours_and_less_than_the_programs(told: Told) -> None:
    assert told.facts["first"][SHUFFLE_PARTITIONS] == "3"
    assert told.facts["first"]["spark.sql.session.timeZone"] == "CET"
    assert told.facts["second"][SHUFFLE_PARTITIONS] == "11"


def test_a_second_session_keeps_nothing_of_the_first(told: Told) -> None:
    assert told.facts["first"]["spark.penstock.test"] == "x"
    assert told.facts["first"]["name"] == "first"
    assert told.facts["second"]["spark.penstock.test"] is None
    assert told.facts["second"]["name"] == "second"
    assert told.facts["second"]["file system"] == "penstock.LeanLocalFileSystem"


def test_what_a_jvm_is_started_with_cannot_be_changed_later(told: Told) -> None:
    assert "spark.driver.memory: these apply when the JVM starts" in told.facts["more memory"]


def test_the_environment_is_left_as_it_was(told: Told) -> None:
    assert told.facts["environment"] == {"JAVA_HOME": None, "PYSPARK_PYTHON": None, "PYSPARK_DRIVER_PYTHON": None}


def test_a_jvm_that_died_is_said(told: Told) -> None:
    assert told.facts["killed"].startswith("PipelineError: the JVM of the Spark session has exited")


def test_a_session_starts_quietly(told: Told) -> None:
    for noise in ("log4j profile", "NativeCodeLoader", "SPARK_LOCAL_IP", "Setting default log level"):
        assert noise not in told.err


BEGIN = "Traceback (most recent call last):\n"
OF_DAEMON = '  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker\n'
OF_RUNNER = (
    '  File "<frozen runpy>", line 198, in _run_module_as_main\n'
    '  File "/x/pyspark.zip/pyspark/sql/streaming/python_streaming_source_runner.py", line 1, in main\n'
    "    func_id = read_int(infile)\n"
    '  File "/usr/lib/python3.11/socket.py", line 723, in write\n'
)


@pytest.mark.parametrize(
    ("written", "is_shown"),
    [
        (f"{BEGIN}{OF_DAEMON}BrokenPipeError: [Errno 32] Broken pipe\n", False),
        (
            f"{BEGIN}{OF_RUNNER}EOFError\n\nDuring handling of the above exception, another exception occurred:\n\n"
            f"{BEGIN}{OF_RUNNER}BrokenPipeError: [Errno 32] Broken pipe\n",
            False,
        ),
        (f'{BEGIN}  File "/srv/shop/usage.py", line 3, in f\n    send()\nBrokenPipeError: mine\n', True),
        (f"{BEGIN}{OF_DAEMON}ValueError: something else\n", True),
        ("a word of a function, without an end of its line", True),
        ("\nDuring handling of the above exception, another exception occurred:\n", True),
    ],
    ids=["flush", "hang up", "of the program", "another error", "print", "words alone"],
)
def test_of_what_workers_print_only_that_spark_has_hung_up_is_left_out(
    spark: SparkSession, written: str, is_shown: bool
) -> None:
    jvm: Any = spark._jvm
    shown = jvm.java.io.ByteArrayOutputStream()
    errors = jvm.java.io.PrintStream(jvm.penstock.WorkerErrors(jvm.java.io.PrintStream(shown)), True)
    for line in written.splitlines(keepends=True):
        errors.print(line)
        errors.flush()
    assert str(shown) == (written if is_shown else "")


def test_clusters_give_up_a_silent_host_soon_unless_told_otherwise() -> None:
    ours = lost_host_settings("spark://host:7077", {})
    assert ours["spark.network.timeout"] == "15s"
    assert ours["spark.executor.heartbeatInterval"] == "3s"
    assert lost_host_settings("spark://host:7077", {"spark.executor.memory": "1g"}) == ours
    # Spark refuses to start with a heartbeat interval that is longer than our timeout.
    assert lost_host_settings("spark://host:7077", {"spark.executor.heartbeatInterval": "20s"}) == {}
    assert lost_host_settings("local[2]", {}) == {}
