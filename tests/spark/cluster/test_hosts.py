"""Pipelines on a Spark cluster of several hosts without a shared folder, while hosts are killed and cut off."""

from __future__ import annotations

import io
import platform
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from pyarrow.fs import FileSelector

import penstock
from penstock.cluster.temporary import temporary_cluster
from penstock.errors import JavaMissingError
from penstock.spark.sessions.packaging import NEEDED
from penstock.spark.sessions.program_files import PACKAGE
from penstock.streams.aliases import current_topic
from tests import real_parts
from tests.cli.running import COMMAND
from tests.postgres import PostgresServer
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock, ServerProcess
from tests.spark.cluster.hosts import ROOT, WORKERS, SparkHosts, require_hosts
from tests.spark.cluster.hosts_case import PATIENCE_S, TARGETS, Broker, Case, ThreeBrokers
from tests.spark.cluster.stores import HdfsStore, PrivateFolder, S3Store, Store

pytestmark = pytest.mark.timeout(2_400)

FAULTS: Final = ("broker", "worker", "master", "driver", "cable", "zombie")
STOP_S: Final = 300.0
MOMENTS: Final = ("held", "sent", "delivering")
FAULTS_IN_A_SOAK: Final = 12
MOST_ZOMBIES: Final = 5
"""So often is a worker cut off until one goes on writing when it is back."""


@pytest.fixture(scope="module")
def running_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHosts]:
    require_hosts()
    try:
        with SparkHosts(tmp_path_factory.mktemp("hosts")) as started:
            yield started
    except JavaMissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def spark_hosts(running_hosts: SparkHosts) -> SparkHosts:
    """All workers live, and none has anything to do."""
    running_hosts.start_workers()
    running_hosts.await_idle()
    return running_hosts


@pytest.fixture(scope="module")
def s3(running_hosts: SparkHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with S3Store(tmp_path_factory.mktemp("s3"), running_hosts.hosts.outside) as store:
        yield store


@pytest.fixture(scope="module")
def hdfs(running_hosts: SparkHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsStore]:
    with HdfsStore(tmp_path_factory.mktemp("hdfs"), running_hosts.hosts.outside) as store:
        yield store


@pytest.fixture(scope="module")
def postgres(running_hosts: SparkHosts) -> Iterator[PostgresServer]:
    with PostgresServer(host=running_hosts.hosts.outside) as server:
        yield server


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    """The store that the parameter names."""
    found: Store = request.getfixturevalue(request.param)
    return found


Start = Callable[..., Case]


@pytest.fixture
def start(spark_hosts: SparkHosts, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts the program with these targets."""
    cases: list[Case] = []

    def started(
        store: Store,
        *targets: str,
        by_tasks: bool = False,
        broker: Broker | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Case:
        database = request.getfixturevalue("postgres").fresh_database() if "sql" in targets else ""
        case = Case(spark_hosts, store, tmp_path, database, targets, by_tasks=by_tasks, broker=broker)
        cases.append(case)
        case.start(environment)
        return case

    yield started
    for case in cases:
        case.close()


@pytest.mark.sampled(2, among="pipelines on a standalone cluster")
@pytest.mark.parametrize("store", ["s3", pytest.param("hdfs", marks=pytest.mark.soak)], indirect=True)
def test_a_worker_that_is_cut_off_writes_nothing_twice_when_it_comes_back(start: Start, store: Store) -> None:
    case = start(store, "topic", "state")
    case.send_batch(at_s=0)
    case.await_all()
    for number in range(MOST_ZOMBIES):
        if cut_off_in_a_batch(case, at_s=10 * (number + 1)):
            break
    else:
        pytest.fail(f"none of {MOST_ZOMBIES} zombies went on writing before its executor was told to end")
    case.send_batch(at_s=100)
    case.await_all()
    assert case.driver.terminate(STOP_S) == 0, case.driver.last_words()
    case.check()


def cut_off_in_a_batch(case: Case, *, at_s: int) -> bool:
    """Cut a worker off in the middle of a batch. After another has done it, the worker is back, and goes on writing.

    Returns whether it has staged rows then: Spark may end its executor before.
    """
    gate = f"zombie-{at_s}"
    case.send_batch(at_s=at_s, gate=gate)
    host = case.await_held(gate)
    executors = case.cluster.executors(host)
    try:
        case.unplug(host)
        case.await_all()
        before = set(case.staged_files())
        case.gate.open(gate)  # which the zombie learns as soon as it is back
    finally:
        case.cluster.hosts.plug_in(host)
    if "files" not in case.targets:  # it may be a task that writes files, which stages no rows
        case.wait_until(
            lambda: set(case.staged_files()) - before or not executors & case.cluster.executors(host),
            "rows that the zombie has staged, or the end of its executor",
        )
    staged = bool(set(case.staged_files()) - before)
    case.note(f"{host} is back; went on: {case.gate.has_passed(gate)}, staged rows: {staged}")
    return staged


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("by_tasks", [False, True], ids=["driver", "tasks"])
@pytest.mark.parametrize("store", ["s3", "hdfs"], indirect=True)
def test_every_effect_counts_once_whatever_fails(start: Start, store: Store, by_tasks: bool) -> None:
    choice = random.Random(seed_of())
    case = start(store, *TARGETS, by_tasks=by_tasks)
    faults: list[str] = []
    for number in range(times(2, FAULTS_IN_A_SOAK)):
        case.send_batch(at_s=choice.choice((0, 10 * number)))  # some are late
        case.await_all()
        faults = faults or choice.sample(FAULTS, len(FAULTS))  # each in turn
        fault = faults.pop()
        case.note(f"fault {number}: {fault}")
        if fault == "zombie":
            cut_off_in_a_batch(case, at_s=10 * number)
        else:
            strike_in_a_batch(case, fault, choice.choice(MOMENTS), f"{fault}-{number}", at_s=10 * number)
        case.await_all()
    case.check()
    case.check_windows()
    assert case.driver.terminate(STOP_S) == 0, case.driver.last_words()
    case.check()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_every_effect_counts_once_on_three_brokers_that_are_killed_in_turn(
    start: Start, s3: S3Store, spark_hosts: SparkHosts
) -> None:
    choice = random.Random(seed_of())
    outside = spark_hosts.hosts.outside
    with temporary_cluster(real_parts.kafka_jars(), host=outside) as kafka:
        case = start(s3, "topic", "windows", by_tasks=True, broker=ThreeBrokers(kafka))
        for number in range(times(2, FAULTS_IN_A_SOAK)):
            case.send_batch(at_s=10 * number)
            case.await_all()
            fault = "broker" if number % 2 == 0 else choice.choice(("worker", "driver"))
            strike_in_a_batch(case, fault, choice.choice(MOMENTS), f"{fault}-{number}", at_s=10 * number)
            case.await_all()
        case.check()
        case.check_windows()
        assert case.driver.terminate(STOP_S) == 0, case.driver.last_words()
        case.check()


def strike_in_a_batch(case: Case, fault: str, moment: str, gate: str, *, at_s: int) -> None:
    """Let something fail while a task is held, just after the rows were sent, or when the first are in a target."""
    before = case.delivered()
    case.send_batch(at_s=at_s, gate=gate if moment == "held" else None)
    host = case.await_held(gate) if moment == "held" else WORKERS[at_s // 10 % len(WORKERS)]
    if moment == "delivering":
        case.wait_until(lambda: case.delivered() > before, "the first rows")
    cluster = case.cluster
    if fault == "broker":
        case.broker.kill()
        case.broker.restart()
    elif fault == "worker":
        cluster.kill_worker(host)
    elif fault == "master":
        cluster.kill_master()
        cluster.start_master()
    elif fault == "driver":
        case.driver.kill()
    else:
        try:
            case.unplug(host)
            case.await_all()
        finally:
            cluster.hosts.plug_in(host)
    case.gate.open(gate)
    cluster.start_workers()
    if fault == "driver":
        cluster.await_idle()
        case.start_driver()


@pytest.fixture
def changed_workers(spark_hosts: SparkHosts) -> Iterator[SparkHosts]:
    """Workers that may be changed, and are as before after the test."""
    yield spark_hosts
    spark_hosts.worker_environment.clear()
    spark_hosts.hidden = ()
    spark_hosts.replace_workers()


@pytest.mark.soak
def test_checkpoints_that_hosts_do_not_share_are_refused_before_the_first_batch(start: Start) -> None:
    case = start(PrivateFolder(), "topic")
    case.send_batch(at_s=0)
    told = case.await_refusal()
    assert "/checkpoints/hosts is not shared: the executor on worker-" in told
    assert "what the driver on driver has written" in told


@pytest.mark.soak
def test_a_folder_for_files_that_hosts_do_not_share_is_refused_too(start: Start, s3: S3Store) -> None:
    case = start(s3, "files", environment={"PENSTOCK_TEST_FOLDER": "/tmp/files"})
    case.send_batch(at_s=0)
    assert "/tmp/files is not shared: the executor on worker-" in case.await_refusal()


@pytest.mark.soak
def test_a_worker_with_a_wrong_clock_is_refused(start: Start, s3: S3Store, changed_workers: SparkHosts) -> None:
    text = "import time\n_time = time.time\ntime.time = lambda: _time() - 3600\n"
    (changed_workers.hosts.disk("worker-2") / "sitecustomize.py").write_text(text)
    changed_workers.worker_environment["worker-2"] = {"PYTHONPATH": "/mnt"}
    changed_workers.replace_workers()
    case = start(s3, "topic")
    case.send_batch(at_s=0)
    told = case.await_refusal()
    assert re.search(r"the clocks of the hosts differ: worker-2 is 3[56]\d\d s behind the driver\. Synchronize", told)


@pytest.mark.soak
def test_a_worker_with_another_python_is_refused(start: Start, s3: S3Store, spark_hosts: SparkHosts) -> None:
    other = other_python()
    for host in ("driver", *WORKERS):
        python = spark_hosts.hosts.disk(host) / "python"
        python.write_text(f'#!/bin/sh\nexec {other if host == "worker-2" else sys.executable} "$@"\n')
        python.chmod(0o755)
    case = start(s3, "topic", environment={"PYSPARK_PYTHON": "/mnt/python", "PYSPARK_DRIVER_PYTHON": "/mnt/python"})
    case.send_batch(at_s=0)
    told = case.await_refusal()
    assert f"the executors run another Python than the driver, which has {platform.python_version()}" in told


def other_python() -> str:
    """A Python of another minor version."""
    names = [f"python3.{minor}" for minor in range(10, 20) if minor != sys.version_info.minor]
    on_path = [shutil.which(name) for name in names]
    beside = [str(path) for name in names for path in Path(sys.base_prefix).parent.glob(f"*/bin/{name}")]
    for found in filter(None, (*on_path, *beside)):
        asked = subprocess.run([found, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
        if asked.returncode == 0:
            return asked.stdout.strip()
    pytest.skip("there is no Python of another minor version on this machine")


VERSIONS: Final = """
import sys
from penstock.spark.pipeline import Pipeline
from pyspark.sql import functions as F

pipe = Pipeline("usage", sys.argv[1], engine="python")
numbers = pipe.read("numbers", max_records_per_batch=20).select("key", F.col("value").cast("string").cast("long"))
pipe.write(numbers.select("key", (F.col("value") * {rate}).cast("string").alias("value")), "copies")
"""


@pytest.mark.soak
def test_a_version_is_reprocessed_on_hosts_over_a_killed_driver_and_the_old_one_is_retired(
    spark_hosts: SparkHosts, s3: S3Store, tmp_path: Path
) -> None:
    """Both versions run on the cluster, with their checkpoints in S3. Nothing stops the first one but the register."""
    program = spark_hosts.hosts.disk("driver") / "usage.py"
    checkpoints = s3.fresh_folder()
    options = ["--master", spark_hosts.url, "--checkpoints", checkpoints, "--conf", "spark.cores.max=2"]
    for name, value in {**spark_hosts.conf(), **s3.conf()}.items():
        options += ["--conf", f"{name}={value}"]
    environment = {"PYTHONPATH": str(ROOT / "src"), **s3.environment()}
    drivers: list[ServerProcess] = []

    def values(connection: penstock.Connection, topic: str) -> list[int]:
        there = topic in connection.topics()
        return sorted(int(record.value or b"") for record in connection.read(topic)) if there else []

    def started(*more: str) -> ServerProcess:
        output = tmp_path / f"driver-{len(drivers)}.txt"
        command = [*COMMAND, "run", "/mnt/usage.py", *options, *more, "--", url]
        drivers.append(spark_hosts.start_driver(command, output, environment))
        return drivers[-1]

    def wait_until(holds: Callable[[], object], driver: ServerProcess, timeout_s: float = PATIENCE_S) -> None:
        until = time.monotonic() + timeout_s
        while not holds():
            assert driver.is_alive(), driver.last_words()
            assert time.monotonic() < until, driver.last_words()
            time.sleep(0.1)

    with Penstock(tmp_path / "broker", host=spark_hosts.hosts.outside) as broker:
        url = f"kafka://{broker.bootstrap}"
        try:
            with penstock.connect(url) as connection:
                connection.create_topic("numbers", 2)
                for number in range(200):
                    connection.send("numbers", str(number), key=str(number % 7))
                connection.flush(30)
                program.write_text(VERSIONS.format(rate=2))
                first = started()
                wait_until(lambda: len(values(connection, "copies")) == 200, first)
                program.write_text(VERSIONS.format(rate=3))
                reprocess = ("--reprocess", "v2", "--once", "--switch", "always", "--retire")
                killed = started(*reprocess)
                wait_until(lambda: values(connection, "copies.v2"), killed)
                killed.kill()
                last = started(*reprocess)
                assert last.popen.wait(PATIENCE_S) == 0, last.last_words()
                assert first.popen.wait(PATIENCE_S) == 0, first.last_words()
                told = last.output()
                assert "resumes version v2" in told
                assert f"Stopped version v1, which ran in process {first.pid} on host driver." in told
                assert values(connection, "copies.v2") == [3 * number for number in range(200)]
                assert values(connection, "copies") == [2 * number for number in range(200)]
                assert current_topic(connection, "copies") == "copies.v2"
        finally:
            for driver in drivers:
                driver.kill()
    bucket = checkpoints.removeprefix("s3a://")
    left = s3.files().get_file_info(FileSelector(bucket, recursive=True))
    assert {each.path.removeprefix(f"{bucket}/").split("/")[0] for each in left if each.is_file} == {"usage@v2"}


PROGRAM: Final = """
import sys
import pyarrow
from penstock.spark.pipeline import Pipeline
from rates import doubled

pipe = Pipeline("doubling", sys.argv[1], checkpoints=sys.argv[2], engine="python")
numbers = pipe.read("numbers").select("key", "value")
pipe.write(numbers.mapInArrow(doubled, "key binary, value binary"), "doubled")
"""

RATES: Final = """
import pyarrow

def doubled(batches):
    import penstock
    for batch in batches:
        told = f"{penstock.__file__} {pyarrow.__file__}".encode()
        values = [b"%d %b" % (2 * int(each), told) for each in batch.column("value").to_pylist()]
        yield pyarrow.RecordBatch.from_arrays(
            [batch.column("key"), pyarrow.array(values, pyarrow.binary())], ["key", "value"]
        )
"""


@pytest.mark.soak
def test_workers_with_nothing_but_java_python_and_spark_get_their_environment_as_an_archive(
    changed_workers: SparkHosts, s3: S3Store, tmp_path: Path
) -> None:
    hosts, disk = changed_workers.hosts, changed_workers.hosts.disk("driver")
    changed_workers.hidden = (Path(sys.prefix).resolve(), PACKAGE.parent)
    changed_workers.replace_workers()
    (disk / "program.py").write_text(PROGRAM)
    (disk / "rates.py").write_text(RATES)
    pack_environment(disk / "environment.tar.gz")
    with Penstock(tmp_path / "broker", host=hosts.outside) as broker:
        url = f"kafka://{broker.bootstrap}"
        with penstock.connect(url) as connection:
            connection.create_topic("numbers", 1)
            for number in range(20):
                connection.send("numbers", str(number))
            connection.flush(30)
        options = ["--master", changed_workers.url, "--archive", "/mnt/environment.tar.gz", "--once"]
        for name, value in {**changed_workers.conf(), **s3.conf()}.items():
            options += ["--conf", f"{name}={value}"]
        command = [*COMMAND, "run", "/mnt/program.py", *options, "--", url, s3.fresh_folder()]
        driver = changed_workers.start_driver(command, tmp_path / "driver.txt", s3.environment())
        try:
            assert driver.popen.wait(PATIENCE_S) == 0, driver.last_words()
        finally:
            driver.kill()
        with penstock.connect(url) as connection:
            told = [(record.value or b"").decode().split() for record in connection.read("doubled")]
    assert sorted(int(number) for number, _, _ in told) == [2 * number for number in range(20)]
    for _, ours, packed in told:
        assert "penstock-program.zip" in ours
        assert "/environment/packages/pyarrow/" in packed


def pack_environment(path: Path) -> None:
    """An archive of the compiled packages, and of a Python that finds them, as venv-pack makes one."""
    script = (
        '#!/bin/sh\nhere=$(cd "$(dirname "$0")/.." && pwd)\n'
        f'PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/packages" exec "{Path(sys.executable).resolve()}" -s "$@"\n'
    ).encode()
    site = Path(sysconfig.get_path("purelib"))
    needed = {*NEEDED, "dateutil", "six", "pytz", "typing_extensions", "tzdata"}
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        about = tarfile.TarInfo("bin/python3")
        about.size, about.mode = len(script), 0o755
        archive.addfile(about, io.BytesIO(script))
        for entry in site.iterdir():
            name = re.split(r"[.-]", entry.name)[0]
            if name in needed or (name.startswith("_") and "cffi" in name):
                archive.add(entry, f"packages/{entry.name}", filter=_without_tests)


def _without_tests(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "/tests/" in entry.name or "/include/" in entry.name else entry
