"""One way to a Spark session, with settings that suit streams and small batches."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from penstock.errors import ConfigError, ConnectorMissingError, PipelineError
from penstock.spark.class_archive import archive_options, session_jars
from penstock.spark.jars import connector_jars
from penstock.spark.java import find_java
from penstock.spark.jvm import FILE_SYSTEM_CLASS, LEAN_FILES
from penstock.spark.run_settings import current_run
from penstock.spark.session_defaults import defaults, local_cores, quiet_logging, site_defaults
from penstock.spark.worker_environment import settle_functions
from penstock.spark.worker_sockets import socket_settings

CONNECTOR_CLASS: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
"""What Spark's Kafka connector is known by in a JVM."""

MASTER: Final = re.compile(r"local(-cluster)?(\[.*\])?|yarn|(spark|k8s)://.+")

DEFAULT_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
AT_LAUNCH: Final = (
    "spark.driver.memory",
    "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath",
    "spark.driver.extraJavaOptions",
    DEFAULT_JAVA_OPTIONS,
)
"""What a JVM is started with, and keeps until this process ends."""

log = logging.getLogger(__name__)
_one_at_a_time = threading.RLock()
_launched_with: dict[str, str] = {}
"""The settings of the session that started the JVM of this process."""


def session(
    name: str = "penstock",
    *,
    master: str | None = None,
    conf: Mapping[str, object] | None = None,
    connector: bool | None = None,
) -> SparkSession:
    """The Spark session of this process, started if there is none.

    What counts, the strongest first: what `penstock run` was told (`RunSettings.conf`, `RunSettings.master`), `conf`
    and `master`, the machine's spark-defaults.conf or spark-submit, and what Penstock chooses for streams. `connector`
    says whether Spark's Kafka connector is to be there: True demands it, False leaves it out, None takes it if
    `penstock spark jars` has fetched it.

    A session that is active already is returned as it is, with those of the settings asked for that can be changed
    while it runs; ConfigError names the others if they differ from what the session has.
    """
    if "SPARK_REMOTE" in os.environ or "spark.remote" in (conf or {}):
        raise ConfigError(
            "Penstock runs in the driver and cannot use a Spark Connect server: unset SPARK_REMOTE (spark.remote) and "
            "name the cluster as the master, such as spark://host:7077"
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
        settle_functions(spark)
        return spark


def active_session() -> SparkSession | None:
    """The session of this process, whoever started it; None if there is none, or if it was stopped."""
    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return None
    try:
        stopped = context._jsc.sc().isStopped()
    except (Py4JError, OSError) as error:
        raise PipelineError("the JVM behind the Spark session has ended: start this program again") from error
    if stopped:  # by the JVM itself, for instance when a cluster gave the application up
        context.stop()
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def has_connector(spark: SparkSession) -> bool:
    """Whether Spark's own Kafka connector can be used in this session."""
    return can_load(spark, CONNECTOR_CLASS)


def can_load(spark: SparkSession, java_class: str) -> bool:
    """Whether the driver of this session finds a Java class."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return _finds(jvm, java_class)


def warm_workers(spark: SparkSession) -> threading.Thread:
    """Have the Python workers of the executors started and their imports done, beside whatever else happens.

    The first batch would wait for it otherwise, and it takes about as long as a query takes to be planned. If it fails
    that is only logged, as the first batch will tell what is wrong. The thread that does it is returned.
    """
    thread = threading.Thread(target=_use_workers, args=(spark,), name="penstock-warm-workers", daemon=True)
    thread.start()
    return thread


def _use_workers(spark: SparkSession) -> None:
    tasks = spark.sparkContext.defaultParallelism
    try:
        spark.range(0, tasks, 1, tasks).mapInArrow(_pass_on, "id long").write.format("noop").mode("append").save()
    except (PySparkException, Py4JError, OSError) as error:
        log.debug("the Python workers could not be warmed: %s", error)


def _pass_on(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _started(name: str, master: str | None, wishes: dict[str, str], connector: bool | None) -> SparkSession:
    running = _running_jvm()
    given = _given_settings(running)
    chosen_master = master or given.get("spark.master") or "local[*]"
    lean = LEAN_FILES if running is None or _finds(running, FILE_SYSTEM_CLASS) else {}
    quiet = quiet_logging(_find_spark_home()) if running is None else {}
    settings = {**defaults(chosen_master), **lean, **quiet, **given, **wishes, "spark.master": chosen_master}
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
        if jars and connector and not _finds(running, CONNECTOR_CLASS):
            raise ConfigError(
                "the JVM of this process was started without Spark's Kafka connector, and takes it up only when it "
                "starts: ask for it in the first session, or start this program again"
            )
        _forget_earlier(running, settings)
    builder = SparkSession.builder.config(map={**settings, "spark.api.mode": "classic"})
    try:
        with _environment(settings, needs_java=running is None), _importing_meanwhile():
            spark = builder.getOrCreate()
    except Py4JJavaError as error:
        raise PipelineError(f"Spark did not start on {chosen_master}: {_first_line(error)}") from error
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise PipelineError(
            f"the JVM of Spark ended while it started on {chosen_master}; what it wrote to standard error says why"
        ) from error
    if running is None:
        _launched_with.clear()
        _launched_with.update(settings)
    return spark


def _adapted(
    spark: SparkSession, master: str | None, wishes: Mapping[str, str], connector: bool | None
) -> SparkSession:
    """The session that runs, changed as far as a running one can be."""
    context = spark.sparkContext
    has = dict(context.getConf().getAll())
    refused = []
    if master is not None and master != context.master:
        refused.append(f"the master is {context.master}, not {master}")
    for key, value in wishes.items():
        if has.get(key) == value or _changed(spark, key, value):
            continue
        refused.append(f"{key} is {has.get(key, 'not set')}, not {value}")
    if connector and not has_connector(spark):
        refused.append("Spark's Kafka connector is not in it")
    if refused:
        raise ConfigError(
            f"a Spark session runs already, and these cannot be changed while it does: {'; '.join(refused)}. Stop it "
            "first (spark.stop()), or ask for the same"
        )
    return spark


def _changed(spark: SparkSession, key: str, value: str) -> bool:
    if not spark.conf.isModifiable(key):
        return False
    try:
        spark.conf.set(key, value)
    except PySparkException as error:
        raise ConfigError(f"{key}={value} is not a setting that Spark takes: {_first_line(error)}") from error
    return True


def _wished_master(
    argument: str | None, conf: Mapping[str, object], run_master: str | None, run_conf: Mapping[str, str]
) -> str | None:
    in_conf = conf.get("spark.master")
    if argument is not None and in_conf is not None and argument != in_conf:
        raise ConfigError(f"two masters: master={argument!r}, and spark.master={in_conf!r} in conf. Name one")
    wished = run_conf.get("spark.master") or run_master or argument or (None if in_conf is None else str(in_conf))
    if wished is not None and not MASTER.fullmatch(wished):
        raise ConfigError(
            f"{wished!r} is no master that Spark knows: local, local[4], local[*], spark://host:7077, yarn, k8s://..."
        )
    return wished


def _texts(conf: Mapping[str, object]) -> dict[str, str]:
    """Settings as Spark takes them: True is "true", 4 is "4"."""
    texts = {}
    for key, value in conf.items():
        if not isinstance(value, str | int | float):
            raise ConfigError(f"{key}={value!r}: settings of Spark are texts, numbers and booleans")
        texts[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


def _running_jvm() -> Any:
    """The JVM that this process has already, from an earlier session or from spark-submit; None if it has none."""
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    SparkContext._ensure_initialized()
    return SparkContext._jvm


def _given_settings(running: Any) -> dict[str, str]:
    """What the machine or spark-submit says about settings; an earlier session of this process does not count."""
    if running is not None and "PYSPARK_GATEWAY_PORT" in os.environ:
        return dict(SparkConf().getAll())
    return site_defaults(_find_spark_home())


def _wished_jars(connector: bool | None) -> tuple[Path, ...]:
    if connector is False:
        return ()
    jars = connector_jars()
    if connector and not jars:
        raise ConnectorMissingError(
            "Spark's Kafka connector has not been fetched for this version of Spark: run `penstock spark jars` once"
        )
    return jars


def _add_jars(settings: dict[str, str], jars: Iterable[str], one_process: bool) -> None:
    """Put them before the JVM that is about to start, and before executors that are JVMs of their own."""
    settings["spark.driver.extraClassPath"] = _joined(os.pathsep, jars, settings.get("spark.driver.extraClassPath"))
    if not one_process:
        settings["spark.jars"] = _joined(",", jars, settings.get("spark.jars"))


def _use_archive(settings: dict[str, str], own: Mapping[str, str]) -> None:
    """Begin with the archive of Spark's classes if there is one, unless somebody has said how Java is to begin."""
    if DEFAULT_JAVA_OPTIONS not in own and (options := archive_options(settings)):
        settings[DEFAULT_JAVA_OPTIONS] = _joined(" ", [options], settings.get(DEFAULT_JAVA_OPTIONS))


def _joined(separator: str, ours: Iterable[str], theirs: str | None) -> str:
    return separator.join([*([theirs] if theirs else []), *ours])


def _check_launched(wishes: Mapping[str, str]) -> None:
    differing = [key for key in AT_LAUNCH if key in wishes and wishes[key] != _launched_with.get(key)]
    if differing:
        raise ConfigError(
            f"{', '.join(differing)}: the JVM of this process runs already, and keeps what it was started with. Set "
            "them in the first session, or start this program again"
        )


def _forget_earlier(running: Any, settings: Mapping[str, str]) -> None:
    """The JVM remembers what it was started with as properties, which would find their way into the next session."""
    for key in _launched_with.keys() - settings.keys() - set(AT_LAUNCH):
        running.java.lang.System.clearProperty(key)


def _finds(jvm: Any, java_class: str) -> bool:
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(java_class)
    except Py4JJavaError:
        return False
    return True


@contextmanager
def _environment(settings: Mapping[str, str], *, needs_java: bool) -> Iterator[None]:
    """What PySpark reads from the environment while it starts; nothing of it stays."""
    wanted = {
        name: settings.get(setting) or os.environ.get(name) or sys.executable
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
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _importing_meanwhile() -> Iterator[None]:
    """PySpark imports pandas once the JVM answers; while one core starts the JVM, another may as well import it."""
    thread = threading.Thread(target=_import_pandas, name="penstock-import", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _import_pandas() -> None:
    with contextlib.suppress(ImportError):  # whoever needs it imports it again, and says that it is not there
        importlib.import_module("pandas")


def _first_line(error: Exception) -> str:
    """What a person needs of an error of Spark, without the Java stack under it."""
    cause = getattr(error, "java_exception", None)
    if cause is not None:
        while cause.getCause() is not None:
            cause = cause.getCause()
        return str(cause.toString()).splitlines()[0]
    return str(error).strip().splitlines()[0]
