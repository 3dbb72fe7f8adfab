"""What executors need of a program: Penstock itself, and the program with the modules beside it.

Executors of a cluster are other machines, or at least other folders. Pure Python is sent to them; what is compiled
(pyarrow, numpy, confluent-kafka, ...) must be there, by an installation or by an archive of an environment, and is
asked for before anything runs.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.spark.executors import check_executors
from penstock.spark.program_files import program_files
from penstock.spark.session_defaults import local_cores

_log = logging.getLogger("penstock.spark")

ARCHIVE_FOLDER: Final = "environment"
_SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_ARCHIVES: Final = (".tar.gz", ".tgz", ".tar", ".zip")
_OUR_PACKAGES: Final = ("penstock", "pyspark_penstock")
_NOT_SENT: Final = frozenset({".pyc", ".nbi", ".nbc", ".jar", ".java", ".class", ".so"})
_EARLIEST_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)

_shipped: set[str] = set()
"""The applications that have been sent what they need."""
_one_at_a_time = threading.Lock()


def ship(spark: SparkSession, program: str | None = None) -> None:
    """Send the executors what they need to run this program, once; nothing where they are this process.

    `program` is the file of the program, by default the one that this process runs. ConfigError when executors lack
    packages, naming them.
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
    """The program that this process runs; None for an interactive one, and for modules of Penstock itself."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None:
        return None
    path = Path(file).absolute()
    return None if path.is_relative_to(_package_folder("penstock")) else path


def archive_settings(archive: str, master: str | None) -> dict[str, str]:
    """The settings of Spark with which executors run in the environment of an archive (venv-pack, conda-pack).

    Python is found by its name, on a PATH that begins with the archive and goes on with our own environment: the
    driver runs Python processes, too, by the same name and with the same PATH, and has not unpacked the archive.
    """
    path = Path(archive).expanduser()
    if master is None or local_cores(master) is not None:
        raise ConfigError("an archive is for the executors of a cluster: with a local master, everything runs in here")
    if "://" not in archive:
        if not path.is_file():
            raise ConfigError(f"there is no archive {archive!r}: make one of this environment with venv-pack")
        if not path.name.endswith(_ARCHIVES):
            raise ConfigError(f"{archive!r} is no archive that Spark unpacks: it takes {', '.join(_ARCHIVES)}")
        archive = str(path.absolute())
    return {
        "spark.archives": f"{archive}#{ARCHIVE_FOLDER}",
        "spark.pyspark.python": "python3",
        "spark.executorEnv.PATH": f"./{ARCHIVE_FOLDER}/bin:{Path(sys.executable).parent}:{_SYSTEM_PATH}",
    }


def put_our_python_first() -> None:
    """Have the JVM of the driver find the Python of the environment that this process runs in."""
    folder = str(Path(sys.executable).parent)
    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if parts[0] != folder:
        os.environ["PATH"] = os.pathsep.join([folder, *parts])


def _archive(context: SparkContext, program: Path | None) -> Path:
    """A zip of everything that executors import and have not got, in a folder that goes with the session."""
    folder = Path(_scratch(context))
    path = folder / "penstock-program.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        names = set()
        for name, file in _files(program):
            if name not in names:
                names.add(name)
                _add(archive, name, file)
    _log.info("sending %d files, %d KB, to the executors", len(names), path.stat().st_size // 1024)
    return path


def _add(archive: zipfile.ZipFile, name: str, file: Path) -> None:
    """Without times: archives of the same files are the same."""
    about = zipfile.ZipInfo(name, _EARLIEST_ZIP_TIME)
    about.compress_type = zipfile.ZIP_DEFLATED
    about.external_attr = 0o644 << 16
    archive.writestr(about, file.read_bytes())


def _files(program: Path | None) -> Iterator[tuple[str, Path]]:
    for package in _OUR_PACKAGES:
        folder = _package_folder(package)
        for file in sorted(folder.rglob("*")):
            if file.suffix not in _NOT_SENT and file.is_file():
                yield f"{package}/{file.relative_to(folder).as_posix()}", file
    if program is not None:
        yield from program_files(program)


def _package_folder(package: str) -> Path:
    here = Path(__file__).resolve().parents[1]
    return here if package == here.name else here.parent / package


def _scratch(context: SparkContext) -> str:
    """The folder that Spark removes when the session ends, or one of our own where it has none."""
    folder: Any = context._temp_dir
    return str(folder) if folder else tempfile.mkdtemp(prefix="penstock-")
