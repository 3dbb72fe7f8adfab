"""The log's data folder: is it writable, is there room, and how long does a sync take?"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.cli.checks.finding import Finding, fail, ok, warn
from penstock.cli.output import size_text

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
    """The duration of a sync: the median of a few of one block each, while that is quick."""
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
