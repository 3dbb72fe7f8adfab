"""The machine: Python, memory, file handles, clocks, and temporary folders."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from penstock.cli.checks.extras import installed_version
from penstock.cli.checks.finding import Finding, fail, ok, warn
from penstock.cli.output import size_text
from penstock.errors import JavaMissingError, MissingExtraError
from penstock.java.installed import find_java

FAIL_BELOW: Final = 100 * 2**20
WARN_BELOW: Final = 2 * 2**30
FEW_INODES: Final = 10_000
SYNCS: Final = 15
SYNCING_S: Final = 0.6
SLOW_SYNC_S: Final = 0.030
SYNC: Final = getattr(os, "fdatasync", os.fsync)
"""What the broker calls; macOS has no fdatasync."""
BLOCK: Final = bytes(4096)
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
OVER_A_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "glusterfs", "ceph"})


def measure_sync_s(
    folder: Path,
    monotonic: Callable[[], float] = time.monotonic,
    sync: Callable[[int], None] = SYNC,
) -> float:
    """The median duration of syncing one block to disk. Repeated up to `SYNCS` times, unless a sync is slow."""
    took: list[float] = []
    began_s = monotonic()
    with tempfile.TemporaryFile(dir=folder, prefix=".penstock-doctor-", buffering=0) as file:
        while len(took) < SYNCS and (not took or monotonic() - began_s < SYNCING_S):
            file.write(BLOCK)
            before_s = monotonic()
            sync(file.fileno())
            took.append(monotonic() - before_s)
    return statistics.median(took)


def check_data_folder(
    folder: Path,
    usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage,
    mounts: Path = Path("/proc/mounts"),
    measure: Callable[[Path], float] = measure_sync_s,
) -> list[Finding]:
    """Findings about the folder. Nothing stays behind. For a missing folder its nearest parent is checked."""
    where = next((each for each in (folder.absolute(), *folder.absolute().parents) if each.exists()), Path("/"))
    if not where.is_dir():
        return [fail("data folder", f"{where} is not a folder", "name another one with --data, or move the file away")]
    name = f"{folder}" if where == folder.absolute() else f"{folder} (to be created in {where})"
    try:
        sync_s = measure(where)
    except PermissionError:
        fix = f"take ownership (chown {os.geteuid()} {where}), or name another one with --data"
        return [fail("data folder", f"{name} is not writable by this user", fix)]
    except OSError as error:
        return [fail("data folder", f"{name}: writing failed: {error.strerror}", "check the disk, or use another")]
    return [_permissions(where, name), _space(where, usage), _syncing(where, sync_s, _kind(where, mounts))]


def _permissions(folder: Path, name: str) -> Finding:
    mode = folder.stat().st_mode
    if mode & 0o002 and not mode & 0o1000:
        return warn("data folder", f"{name} is writable by every user", f"chmod o-w {folder}")
    return ok("data folder", f"{name} is writable")


def _space(folder: Path, usage: Callable[[Path], tuple[int, int, int]]) -> Finding:
    total, _, free = usage(folder)
    text = f"{size_text(free)} of {size_text(total)} free"
    fix = "free some, shorten the retention (retention.ms, retention.bytes), or use another disk"
    if free < FAIL_BELOW:
        return fail("disk space", text, fix)
    inodes = os.statvfs(folder)
    if inodes.f_files and inodes.f_favail < FEW_INODES:
        return warn("disk space", f"{text}, but only {inodes.f_favail:,} files can be created", "remove small files")
    if free < WARN_BELOW:
        return warn("disk space", text, fix)
    return ok("disk space", text)


def _syncing(folder: Path, sync_s: float, kind: str) -> Finding:
    text = f"{sync_s * 1000:.2f} ms a sync ({kind or 'unknown file system'})"
    if kind in IN_MEMORY:
        return warn("disk sync", f"{folder} is in memory ({kind}): a restart loses it", "use a folder on a disk")
    if kind in OVER_A_NETWORK:
        return warn("disk sync", f"{text}: locks and syncs go over a network", "use a local disk for the log")
    if sync_s > SLOW_SYNC_S:
        per_s = f"about {1 / sync_s:.0f} a second for a producer that waits for each acknowledgement"
        return warn(
            "disk sync", f"{text}: {per_s}", "use an SSD, or batch more, or acks=1 where a power cut may lose some"
        )
    return ok("disk sync", text)


def _kind(folder: Path, mounts: Path) -> str:
    """The type of the folder's file system, by the longest mount point above it."""
    try:
        lines = mounts.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, found = -1, ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        if folder.resolve().is_relative_to(point) and len(point.parts) >= best:
            best, found = len(point.parts), fields[2]
    return found


def check_java(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Findings about Java. Everything but Spark works without it, so its absence is not a failure."""
    if installed_version("pyspark") is None:
        return [ok("java", "not needed without Spark (pip install 'penstock[spark]')")]
    try:
        java = find_java(environment)
    except JavaMissingError as error:
        what, _, fix = str(error).rpartition(". ")
        return [warn("java", what, fix.rstrip("."))]
    text = f"{java.version} ({java.where})"
    home = environment.get("JAVA_HOME")
    if home and not java.where.startswith("JAVA_HOME="):
        return [warn("java", f"{text}, as JAVA_HOME={home} is not usable", "correct JAVA_HOME, or unset it")]
    return [ok("java", text)]


def check_connector() -> list[Finding]:
    if installed_version("pyspark") is None:
        return []
    try:
        from penstock.spark.sessions.jars import connector_folder, connector_jars
    except (ImportError, MissingExtraError) as error:
        return [warn("spark connector", f"Spark cannot be imported: {error}", "pip install 'penstock[spark]'")]
    jars = connector_jars()
    if jars:
        return [ok("spark connector", f"{len(jars)} jars in {connector_folder()}")]
    fix = "needed for real-time mode and for Apache Kafka through Spark: penstock spark jars"
    return [warn("spark connector", f"not fetched for Spark {installed_version('pyspark')}", fix)]


def check_archive() -> list[Finding]:
    """Whether the archive that makes sessions start faster exists. Everything works without it."""
    if installed_version("pyspark") is None:
        return []
    try:
        from penstock.spark.sessions.class_archive import current_archive

        there = current_archive()
    except (ImportError, MissingExtraError, JavaMissingError):
        return []  # reported by the findings about Spark and Java
    if there is None:
        return [ok("spark archive", "none; `penstock spark archive` makes sessions start in about half the time")]
    return [ok("spark archive", f"{there}")]


PYTHON: Final = (3, 11)
NEEDED_HANDLES: Final = 512 + 256
"""The broker keeps 512 segment files open (log.open.files.max); the rest is for connections and Python itself."""
GOOD_HANDLES: Final = 4096
LITTLE_MEMORY: Final = 256 * 2**20
"""The broker takes 40 MB and a consumer 220 MB."""
SPARK_MEMORY: Final = 2 * 2**30
CLOCK_SAMPLE_S: Final = 0.2
CLOCK_STEP_S: Final = 0.05
LITTLE_TEMPORARY: Final = 512 * 2**20
LITTLE_SHARED: Final = 32 * 2**20


def check_python(version: tuple[int, ...] = sys.version_info[:3], system: str = sys.platform) -> list[Finding]:
    text = f"{'.'.join(map(str, version))} ({platform.python_implementation()}, {sys.executable})"
    if version < PYTHON:
        return [fail("python", text, f"install Python {PYTHON[0]}.{PYTHON[1]} or newer")]
    if not system.startswith(("linux", "darwin")):
        return [fail("python", f"{text} on {system}", "use Linux, macOS, or WSL: the log needs POSIX file locks")]
    return [ok("python", text)]


def check_memory(
    with_spark: bool, meminfo: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")
) -> list[Finding]:
    """The free memory of the machine or its container, whichever is less."""
    available = _meminfo(meminfo, "MemAvailable")
    if available is None:
        return [ok("memory", "unknown on this system")]
    within = _container(limit)
    free = available if within is None else min(available, within)
    text = f"{size_text(free)} free" + (" in this container" if within is not None and within <= available else "")
    if free < LITTLE_MEMORY:
        return [fail("memory", text, f"free some: a broker and a consumer need {size_text(LITTLE_MEMORY)}")]
    if with_spark and free < SPARK_MEMORY:
        return [
            warn("memory", text, f"Spark needs {size_text(SPARK_MEMORY)}: close other programs, or run it elsewhere")
        ]
    return [ok("memory", text)]


def check_handles(limits: tuple[int, int] | None = None) -> list[Finding]:
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return [ok("file handles", "no limit")]
    text = f"{soft:,} for a process"
    raised = GOOD_HANDLES if hard == resource.RLIM_INFINITY else min(GOOD_HANDLES, hard)
    how = f"run `ulimit -n {raised}` first, or set LimitNOFILE in the service unit" if raised > soft else _of_root(hard)
    if soft < NEEDED_HANDLES:
        return [fail("file handles", f"{text}; a broker needs {NEEDED_HANDLES:,}", how)]
    if soft < 1024:
        return [warn("file handles", f"{text}, enough for few connections", how)]
    return [ok("file handles", f"{text}; a broker needs 512 for segments and one for each connection")]


def check_clock(
    sample_s: float = CLOCK_SAMPLE_S,
    monotonic: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Finding]:
    """Retention and event times use the wall clock: it must advance like the monotonic clock."""
    if wall() < 1_700_000_000:
        return [fail("clock", f"it says {time.strftime('%Y-%m-%d', time.gmtime(wall()))}", "set the clock; run NTP")]
    began_monotonic, began_wall = monotonic(), wall()
    sleep(sample_s)
    # Read the wall clock between two readings of the other, so that a thread switch proves nothing.
    before, passed_wall, after = monotonic() - began_monotonic, wall() - began_wall, monotonic() - began_monotonic
    apart_s = max(before - passed_wall, passed_wall - after, 0.0)
    if apart_s > CLOCK_STEP_S:
        return [warn("clock", f"it jumped by {apart_s * 1000:.0f} ms during the check", "run NTP, which slews it")]
    return [ok("clock", "runs evenly")]


def check_temporary(with_spark: bool, folder: Path | None = None, shared: Path = Path("/dev/shm")) -> list[Finding]:
    """Spark spills to the temporary folder; processes share memory through /dev/shm."""
    found = []
    try:
        temporary = folder or Path(tempfile.gettempdir())
        with tempfile.TemporaryFile(dir=temporary):
            pass
        free = shutil.disk_usage(temporary).free
    except OSError as error:
        return [fail("temporary", f"cannot create a file: {error}", "free some space, or set TMPDIR to another folder")]
    text = f"{temporary}, {size_text(free)} free"
    if with_spark and free < LITTLE_TEMPORARY:
        found.append(warn("temporary", text, "Spark spills there: free some, or set TMPDIR or SPARK_LOCAL_DIRS"))
    else:
        found.append(ok("temporary", text))
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        if not os.access(shared, os.W_OK):
            found.append(
                warn("shared memory", f"{shared} is not writable", "handlers in processes need it: chmod 1777")
            )
        elif free < LITTLE_SHARED:
            fix = "handlers in processes need it: in a container, give --shm-size 256m"
            found.append(warn("shared memory", f"{shared} has {size_text(free)} free", fix))
        else:
            found.append(ok("shared memory", f"{shared}, {size_text(free)} free"))
    return found


def _meminfo(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text("ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        field, _, value = line.partition(":")
        if field == name and value.split()[:1] and value.split()[0].isdecimal():
            return int(value.split()[0]) * 1024
    return None


def _container(limit: Path) -> int | None:
    """What the container may still use; None where there is no limit."""
    try:
        most = limit.read_text("ascii").strip()
        used = (limit.parent / "memory.current").read_text("ascii").strip()
    except OSError:
        return None
    return max(0, int(most) - int(used)) if most.isdecimal() and used.isdecimal() else None


def _of_root(hard: int) -> str:
    return f"the hard limit is {hard:,}: raise it in /etc/security/limits.conf, or in the container's settings"
