"""Sends executors what they need: Penstock itself, and the program with the modules beside it.

Executors of a cluster run on other machines, or at least in other folders. Pure Python is sent to them. Compiled
packages (pyarrow, numpy, confluent-kafka, ...) must be installed there, or be in an archive of an environment; that is
checked before a query runs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import platform
import re
import secrets
import socket
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.errors import ConfigError, PipelineError
from penstock.spark.run.failures import failure_of
from penstock.spark.sessions.defaults import local_cores
from penstock.spark.sessions.masters import ExecutorWatch
from penstock.spark.sessions.program_files import PACKAGE, program_files

_log = logging.getLogger("penstock.spark")

ARCHIVE_FOLDER: Final = "environment"
_SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_ARCHIVES: Final = (".tar.gz", ".tgz", ".zip")
"""Not .tar: Spark unpacks it without the permission to run its Python."""
_OUR_PACKAGES: Final = ("penstock", "pyspark_penstock")
_NOT_SENT: Final = frozenset({".pyc", ".nbi", ".nbc", ".jar", ".java", ".class", ".so"})
_EARLIEST_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)

NEEDED: Final = ("confluent_kafka", "cramjam", "crc32c", "msgspec", "numpy", "pandas", "pyarrow")
"""The compiled packages that Penstock imports on executors."""
_INSTALLED_AS: Final = {"confluent_kafka": "confluent-kafka"}
_MOST_TASKS: Final = 64
_MOST_ATTEMPTS: Final = 1_000
_ADVICE: Final = (
    "install them there, or send an environment: `pip install venv-pack && venv-pack -o environment.tar.gz`, then run "
    "with --archive environment.tar.gz"
)

Answer = TypeVar("Answer")

_shipped: set[str] = set()
"""The ids of the applications to whose executors everything was sent."""
_one_at_a_time = threading.Lock()


def ship(spark: SparkSession, program: str | None = None) -> None:
    """Send the executors what they need to run this program, once. Does nothing on a local master.

    `program` is the file of the program; the default is the main program of this process. Raises ConfigError if
    executors lack packages.
    """
    context = spark.sparkContext
    if local_cores(str(context.master)) is not None:
        return
    with _one_at_a_time:
        if context.applicationId in _shipped:
            return
        file = Path(program) if program is not None else main_file()
        archive = _archive(context, file)
        context.addPyFile(str(archive))
        check_executors(context)
        _shipped.add(context.applicationId)


def main_file() -> Path | None:
    """The main program of this process; None if it is interactive or a module of Penstock itself."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None:
        return None
    path = Path(file).absolute()
    return None if path.is_relative_to(_package_folder("penstock")) else path


def archive_settings(archive: str, master: str | None) -> dict[str, str]:
    """The Spark settings for executors that run in the environment of an archive (venv-pack, conda-pack).

    Python is found by name, on a PATH that begins with the unpacked archive and continues with this environment: the
    driver starts Python processes by the same name and with the same PATH, but has not unpacked the archive.
    """
    path = Path(archive).expanduser()
    if master is None or local_cores(master) is not None:
        raise ConfigError("an archive is for executors of a cluster: a local master runs everything in this process")
    if "://" not in archive:
        if not path.is_file():
            raise ConfigError(f"there is no archive {archive!r}: create one from this environment with venv-pack")
        if not path.name.endswith(_ARCHIVES):
            raise ConfigError(f"{archive!r} is not an archive that Spark can unpack: use {', '.join(_ARCHIVES)}")
        archive = str(path.absolute())
    return {
        "spark.archives": f"{archive}#{ARCHIVE_FOLDER}",
        "spark.pyspark.python": "python3",
        "spark.executorEnv.PATH": f"./{ARCHIVE_FOLDER}/bin:{Path(sys.executable).parent}:{_SYSTEM_PATH}",
    }


def put_our_python_first() -> None:
    """Let the driver's JVM find the Python of this environment first."""
    folder = str(Path(sys.executable).parent)
    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if parts[0] != folder:
        os.environ["PATH"] = os.pathsep.join([folder, *parts])


def _archive(context: SparkContext, program: Path | None) -> Path:
    """A zip of everything that executors import and lack, in a folder that is deleted with the session."""
    folder = Path(_scratch(context))
    path = folder / "penstock-program.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        names = set()
        for name, file in _files(program):
            if name not in names:
                names.add(name)
                _add(archive, name, file.read_bytes())
        for name, text in _metadata():
            _add(archive, name, text.encode())
    _log.info("sending %d files, %d KB, to the executors", len(names), path.stat().st_size // 1024)
    return path


def _metadata() -> Iterator[tuple[str, str]]:
    """What an installed Penstock says about itself: by its entry points, it finds the backends of URLs."""
    try:
        installed = importlib.metadata.distribution("penstock")
    except importlib.metadata.PackageNotFoundError:
        return
    for name in ("METADATA", "entry_points.txt"):
        if (text := installed.read_text(name)) is not None:
            yield f"penstock-{installed.version}.dist-info/{name}", text


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a file without its time, so that archives of the same files are identical."""
    about = zipfile.ZipInfo(name, _EARLIEST_ZIP_TIME)
    about.compress_type = zipfile.ZIP_DEFLATED
    about.external_attr = 0o644 << 16
    archive.writestr(about, content)


def _files(program: Path | None) -> Iterator[tuple[str, Path]]:
    for package in _OUR_PACKAGES:
        folder = _package_folder(package)
        for file in sorted(folder.rglob("*")):
            if file.suffix not in _NOT_SENT and file.is_file():
                yield f"{package}/{file.relative_to(folder).as_posix()}", file
    if program is not None:
        yield from program_files(program)


def _package_folder(package: str) -> Path:
    return PACKAGE if package == PACKAGE.name else PACKAGE.parent / package


def _scratch(context: SparkContext) -> str:
    """The folder that Spark deletes when the session ends, else a new temporary one."""
    folder: Any = context._temp_dir
    return str(folder) if folder else tempfile.mkdtemp(prefix="penstock-")


def check_executors(context: SparkContext) -> None:
    """Raise ConfigError if there are no executors or they lack packages, and PipelineError if nobody can tell."""
    tasks = max(2, min(_MOST_TASKS, context.defaultParallelism))
    needed = NEEDED
    probe = _by_value(lambda numbers: _probe(numbers, needed))
    answers = run_probe(context, tasks, probe)
    complaint = complaint_about(answers)
    if complaint is not None:
        raise ConfigError(complaint)


def run_probe(context: SparkContext, tasks: int, probe: Callable[[Iterable[int]], Iterable[Answer]]) -> list[Answer]:
    """Run as many tasks on the executors. Raises ConfigError if Python cannot run on one of them, or if there is no
    executor, and PipelineError if that cannot be found out."""
    group = f"penstock-probe-{secrets.token_hex(4)}"
    watch = ExecutorWatch(context, group)
    context.setJobGroup(group, "check the executors")
    try:
        with watch:
            answers = context.parallelize(range(tasks), tasks).mapPartitions(probe).collect()
        # Spark has repeated tasks that failed on one executor on another, and the job succeeded.
        for text in _failures(context, group):
            if (known := _known_failure(text)) is not None:
                raise known
        return answers
    except Exception as error:
        if not type(error).__module__.startswith(("py4j.", "pyspark.")):
            raise
        if watch.gave_up:
            raise ConfigError(watch.complaint()) from error
        raise _known_failure(str(error)) or PipelineError(
            f"the executors could not be checked: {failure_of(error).text}"
        ) from error
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def _failures(context: SparkContext, group: str) -> Iterator[str]:
    """The errors of the tasks of a job group, with their hosts."""
    spark = context._jsc.sc()
    spark.listenerBus().waitUntilEmpty()
    tracker = context.statusTracker()
    for job in tracker.getJobIdsForGroup(group):
        for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
            info = tracker.getStageInfo(stage)
            if info is None or not info.numFailedTasks:
                continue
            attempts = spark.statusStore().taskList(stage, info.currentAttemptId, _MOST_ATTEMPTS)
            for number in range(attempts.size()):
                attempt = attempts.apply(number)
                if attempt.errorMessage().isDefined():
                    yield f"on {attempt.host()}: {attempt.errorMessage().get()}"


def complaint_about(answers: Sequence[tuple[str, str, str, tuple[str, ...]]]) -> str | None:
    """A message about executors that lack modules. An answer has the host, the Python, its version, missing modules."""
    lacking = sorted({answer for answer in answers if answer[3]})
    if not lacking:
        return None
    told = [
        f"{host} ({python}, Python {version}) lacks {', '.join(_INSTALLED_AS.get(each, each) for each in missing)}"
        for host, python, version, missing in lacking
    ]
    return f"executors cannot run the pipeline: {'; '.join(told)}. To add them, {_ADVICE}"


def _known_failure(text: str) -> ConfigError | None:
    """What to do about the error of a task; None if it says nothing about the Python of executors."""
    if "PYTHON_VERSION_MISMATCH" in text:
        found = re.search(r"different version: (\d+\.\d+)", text)
        where = re.match(r"on \S+", text)
        return ConfigError(
            f"the executors run another Python than the driver, which has {platform.python_version()}"
            f"{f' ({found[1]} {where[0]})' if found and where else ''}: use the same minor version on all hosts. To "
            f"provide it, {_ADVICE}"
        )
    if "Cannot run program" in text:
        start = text.index("Cannot run program")
        return ConfigError(
            f"executors have no such Python ({text[start:].splitlines()[0]}): choose another with --conf "
            f"spark.pyspark.python=PATH. To provide one, {_ADVICE}"
        )
    return None


def _by_value(function: Any) -> Any:
    """Have a function pickled by value: to import it by name, an executor would need all of Penstock."""
    function.__module__ = "__main__"
    return function


def _probe(numbers: Iterator[int], needed: Sequence[str]) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """On an executor: its host, its Python, the version of it, and which of these modules are missing."""
    missing = tuple(name for name in needed if importlib.util.find_spec(name) is None)
    yield socket.gethostname(), sys.executable, platform.python_version(), missing


_by_value(_probe)
