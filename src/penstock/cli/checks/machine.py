"""The machine: Python, memory, file handles, clocks, and temporary folders."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.cli.checks.finding import Finding, fail, ok, warn
from penstock.cli.output import size_text

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
    """What the container may still use; None: no limit."""
    try:
        most = limit.read_text("ascii").strip()
        used = (limit.parent / "memory.current").read_text("ascii").strip()
    except OSError:
        return None
    return max(0, int(most) - int(used)) if most.isdecimal() and used.isdecimal() else None


def _of_root(hard: int) -> str:
    return f"the hard limit is {hard:,}: raise it in /etc/security/limits.conf, or in the container's settings"
