"""`session`: a Spark session with settings for streams and small batches."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.errors import ConfigError, ConnectorMissingError, PipelineError
from penstock.java.installed import find_java
from penstock.spark.jvm import FILE_SYSTEM_CLASS, LEAN_FILES, jvm_of
from penstock.spark.run.failures import failure_of
from penstock.spark.run.settings import current_run
from penstock.spark.run.status_line import shown_meanwhile
from penstock.spark.sessions.class_archive import archive_options, session_jars
from penstock.spark.sessions.defaults import defaults, local_cores, lost_host_settings, quiet_logging, site_defaults
from penstock.spark.sessions.fork_server import start_fork_server
from penstock.spark.sessions.jars import connector_jars
from penstock.spark.sessions.masters import check_answers
from penstock.spark.sessions.worker_environment import python_for_spark, set_worker_environment

ENABLED: Final = "spark.python.unix.domain.socket.enabled"
FOLDER: Final = "spark.python.unix.domain.socket.dir"
LONGEST_FOLDER: Final = 60
"""The path of a socket has at most 107 bytes, of which its name needs 42."""


def socket_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings by which a local session reaches its Python workers by Unix sockets, unless they are set."""
    if ENABLED in settings or FOLDER in settings or not hasattr(socket, "AF_UNIX"):
        return {}
    folder = _folder()
    return {ENABLED: "true", FOLDER: folder} if len(os.fsencode(folder)) <= LONGEST_FOLDER else {}


@cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="penstock-")
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # not in a forked process
        shutil.rmtree(folder, ignore_errors=True)


CONNECTOR_CLASS: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"

MASTER: Final = re.compile(r"local(-cluster)?(\[.*\])?|yarn|(spark|k8s)://.+")

DEFAULT_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
AT_LAUNCH: Final = (
    "spark.driver.memory",
    "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath",
    "spark.driver.extraJavaOptions",
    DEFAULT_JAVA_OPTIONS,
)
"""Settings that apply when the JVM starts, and cannot be changed until this process ends."""

EXTENDED: Final = {"spark.driver.extraClassPath": os.pathsep, "spark.jars": ",", DEFAULT_JAVA_OPTIONS: " "}
"""Settings to which a session adds values of its own, behind those that were given, and what separates them."""

log = logging.getLogger(__name__)
_one_at_a_time = threading.RLock()
_launched_with: dict[str, str] = {}
"""The settings of the session that started this process's JVM."""


def session(
    name: str = "penstock",
    *,
    master: str | None = None,
    conf: Mapping[str, object] | None = None,
    connector: bool | None = None,
) -> SparkSession:
    """The Spark session of this process, started if there is none.

    Settings come from, in descending priority: `penstock run` (`RunSettings.conf`, `RunSettings.master`), `conf` and
    `master`, the machine's spark-defaults.conf or spark-submit, Penstock's defaults. `connector` is about Spark's Kafka
    connector: True requires it, False leaves it out, None uses it if `penstock spark jars` has fetched it.

    If a session is active, it is returned, after changing those of the given settings that can be changed while it
    runs. Raises ConfigError if others differ.
    """
    if "SPARK_REMOTE" in os.environ or "spark.remote" in (conf or {}):
        raise ConfigError(
            "Penstock runs in the driver and cannot use a Spark Connect server: unset SPARK_REMOTE (spark.remote) and "
            "set the master to the cluster, such as spark://host:7077"
        )
    run = current_run()
    wished_master = _wished_master(master, conf or {}, run.master, run.conf)
    wishes = {**_texts(conf or {}), **_texts(run.conf)}
    wishes.pop("spark.master", None)
    with _one_at_a_time:
        active = active_session()
        if active is not None:
            spark = _adapted(active, wished_master, wishes, connector)
        else:
            spark = _started(name, wished_master, wishes, connector)
        set_worker_environment(spark)
        return spark


def active_session() -> SparkSession | None:
    """The running session of this process, whoever started it; None if there is none."""
    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return None
    try:
        stopped = context._jsc.sc().isStopped()
    except (Py4JError, OSError) as error:
        raise PipelineError("the JVM of the Spark session has exited: restart this program") from error
    if stopped:  # by the JVM itself, for instance because the cluster ended the application
        context.stop()
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def has_connector(spark: SparkSession) -> bool:
    """Whether this session has Spark's Kafka connector."""
    return _can_load(spark.sparkContext._jvm, CONNECTOR_CLASS)


def warm_workers(spark: SparkSession) -> threading.Thread:
    """Start the Python workers of the executors, with their imports, in a background thread, which is returned.

    Otherwise the first batch waits for that, about as long as a query takes to be planned. A failure is only logged, as
    the first batch will report it.
    """
    thread = threading.Thread(target=_use_workers, args=(spark,), name="penstock-warm-workers", daemon=True)
    thread.start()
    return thread


def _use_workers(spark: SparkSession) -> None:
    tasks = spark.sparkContext.defaultParallelism
    try:
        spark.range(0, tasks, 1, tasks).mapInArrow(_pass_on, "id long").write.format("noop").mode("append").save()
    except (PySparkException, Py4JError, OSError) as error:
        log.debug("the Python workers could not be started in advance: %s", error)


def _pass_on(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _started(name: str, master: str | None, wishes: dict[str, str], connector: bool | None) -> SparkSession:
    running = _running_jvm()
    given = _given_settings(running)
    chosen_master = master or given.get("spark.master") or "local[*]"
    check_answers(chosen_master)
    lean = LEAN_FILES if running is None or _can_load(running, FILE_SYSTEM_CLASS) else {}
    quiet = quiet_logging(_find_spark_home()) if running is None else {}
    lost_hosts = lost_host_settings(chosen_master, {**given, **wishes})
    settings = {**defaults(chosen_master), **lost_hosts, **lean, **quiet, **given, **wishes}
    settings["spark.master"] = chosen_master
    if "spark.app.name" not in wishes:
        settings["spark.app.name"] = name
    is_local = local_cores(chosen_master) is not None
    if is_local:
        settings |= socket_settings(settings)
    jars = _wished_jars(connector)
    if running is None:
        _add_jars(settings, session_jars(jars), is_local)
        _use_archive(settings, own={**given, **wishes})
    else:
        _check_launched(wishes)
        if jars and connector and not _can_load(running, CONNECTOR_CLASS):
            raise ConfigError(
                "the JVM of this process was started without Spark's Kafka connector, which cannot be added later: "
                "request it in the first session, or restart this program"
            )
        _forget_earlier(running, settings)
    builder = SparkSession.builder.config(map={**settings, "spark.api.mode": "classic"})
    try:
        with (
            shown_meanwhile(f"starting Spark on {chosen_master}", current_run().quiet),
            _environment(settings, is_local, needs_java=running is None),
            _importing_meanwhile(),
        ):
            spark = builder.getOrCreate()
    except Py4JJavaError as error:
        raise PipelineError(f"Spark did not start on {chosen_master}: {failure_of(error).text}") from error
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise PipelineError(
            f"Spark's JVM exited while it started on {chosen_master}: see its output on standard error"
        ) from error
    if lost_hosts:
        log.info(
            "executors without heartbeats for %s are given up, and their tasks run elsewhere; to change that, set "
            "spark.network.timeout",
            lost_hosts["spark.network.timeout"],
        )
    if running is None:
        _launched_with.clear()
        _launched_with.update(settings)
        if quiet:
            _quieten_python(spark)
    return spark


def _quieten_python(spark: SparkSession) -> None:
    """Suppress what PySpark prints about errors that it also raises: a line of JSON for each error of a query, and the
    traceback of a failed worker, which goes to Spark's log."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    jvm_of(spark).penstock.WorkerErrors.install()


def _adapted(
    spark: SparkSession, master: str | None, wishes: Mapping[str, str], connector: bool | None
) -> SparkSession:
    """The running session, with those settings changed that can be."""
    context = spark.sparkContext
    has = dict(context.getConf().getAll())
    refused = []
    if master is not None and master != context.master:
        refused.append(f"the master is {context.master}, not {master}")
    for key, value in wishes.items():
        if _is_set(has.get(key), key, value) or _changed(spark, key, value):
            continue
        refused.append(f"{key} is {has.get(key, 'not set')}, not {value}")
    if connector and not has_connector(spark):
        refused.append("Spark's Kafka connector is not in it")
    if refused:
        raise ConfigError(
            f"a Spark session is already running, and these settings cannot be changed: {'; '.join(refused)}. Stop it "
            "first (spark.stop()), or request the same settings"
        )
    return spark


def _is_set(current: str | None, key: str, value: str) -> bool:
    if current is None or key not in EXTENDED:
        return current == value
    return current == value or current.startswith(value + EXTENDED[key])


def _changed(spark: SparkSession, key: str, value: str) -> bool:
    if not spark.conf.isModifiable(key):
        return False
    try:
        spark.conf.set(key, value)
    except PySparkException as error:
        raise ConfigError(f"{key}={value} was rejected by Spark: {failure_of(error).text}") from error
    return True


def _wished_master(
    argument: str | None, conf: Mapping[str, object], run_master: str | None, run_conf: Mapping[str, str]
) -> str | None:
    in_conf = conf.get("spark.master")
    if argument is not None and in_conf is not None and argument != in_conf:
        raise ConfigError(f"two masters: master={argument!r}, and spark.master={in_conf!r} in conf. Set one")
    wished = run_conf.get("spark.master") or run_master or argument or (None if in_conf is None else str(in_conf))
    if wished is not None and not MASTER.fullmatch(wished):
        raise ConfigError(
            f"{wished!r} is not a master of Spark: use local, local[4], local[*], spark://host:7077, yarn, k8s://..."
        )
    return wished


def _texts(conf: Mapping[str, object]) -> dict[str, str]:
    """Settings as text: True is "true", 4 is "4"."""
    texts = {}
    for key, value in conf.items():
        if not isinstance(value, str | int | float):
            raise ConfigError(f"{key}={value!r}: settings of Spark are strings, numbers and booleans")
        texts[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


def _running_jvm() -> Any:
    """The JVM of this process, from an earlier session or spark-submit; None if there is none."""
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    SparkContext._ensure_initialized()
    return SparkContext._jvm


def _given_settings(running: Any) -> dict[str, str]:
    """The settings of the machine or of spark-submit, without those of an earlier session of this process."""
    if running is not None and "PYSPARK_GATEWAY_PORT" in os.environ:
        return dict(SparkConf().getAll())
    return site_defaults(_find_spark_home())


def _wished_jars(connector: bool | None) -> tuple[Path, ...]:
    if connector is False:
        return ()
    jars = connector_jars()
    if connector and not jars:
        raise ConnectorMissingError(
            "Spark's Kafka connector was not fetched for this version of Spark: run `penstock spark jars` once"
        )
    return jars


def _add_jars(settings: dict[str, str], jars: Iterable[str], one_process: bool) -> None:
    """Add jars to the class path of the driver, and send them to executors in other processes."""
    settings["spark.driver.extraClassPath"] = _joined(os.pathsep, jars, settings.get("spark.driver.extraClassPath"))
    if not one_process:
        settings["spark.jars"] = _joined(",", jars, settings.get("spark.jars"))


def _use_archive(settings: dict[str, str], own: Mapping[str, str]) -> None:
    """Use the archive of Spark's classes, if there is one and the user has not set these Java options."""
    if DEFAULT_JAVA_OPTIONS not in own and (options := archive_options(settings)):
        settings[DEFAULT_JAVA_OPTIONS] = _joined(" ", [options], settings.get(DEFAULT_JAVA_OPTIONS))


def _joined(separator: str, ours: Iterable[str], theirs: str | None) -> str:
    return separator.join([*([theirs] if theirs else []), *ours])


def _check_launched(wishes: Mapping[str, str]) -> None:
    differing = [key for key in AT_LAUNCH if key in wishes and not _is_set(_launched_with.get(key), key, wishes[key])]
    if differing:
        raise ConfigError(
            f"{', '.join(differing)}: these apply when the JVM starts, and the JVM of this process is already running. "
            "Set them in the first session, or restart this program"
        )


def _forget_earlier(running: Any, settings: Mapping[str, str]) -> None:
    """Clear the properties with which the JVM was started: they would become settings of the next session."""
    for key in _launched_with.keys() - settings.keys() - set(AT_LAUNCH):
        running.java.lang.System.clearProperty(key)


def _can_load(jvm: Any, java_class: str) -> bool:
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(java_class)
    except Py4JJavaError:
        return False
    return True


@contextmanager
def _environment(settings: Mapping[str, str], is_local: bool, *, needs_java: bool) -> Iterator[None]:
    python = python_for_spark(_find_spark_home(), _folder()) if is_local else sys.executable
    wanted = {
        name: settings.get(setting) or os.environ.get(name) or python
        for name, setting in (
            ("PYSPARK_PYTHON", "spark.pyspark.python"),
            ("PYSPARK_DRIVER_PYTHON", "spark.pyspark.driver.python"),
        )
    }
    if needs_java:
        wanted["JAVA_HOME"] = str(find_java().home)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        if needs_java and python != sys.executable and python in wanted.values():
            start_fork_server(_folder())  # for the JVM that is started now, with the same environment
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _importing_meanwhile() -> Iterator[None]:
    """Import pandas in a thread while the JVM starts: PySpark would import it afterwards."""
    thread = threading.Thread(target=_import_pandas, name="penstock-import", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _import_pandas() -> None:
    with contextlib.suppress(ImportError):  # the error is raised where pandas is needed
        importlib.import_module("pandas")
