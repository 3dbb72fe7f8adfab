"""A cluster in a folder of its own, for one drill or one test run, that does not outlive the process that started it.

    python -m penstock.cluster.temporary FOLDER

removes what such a cluster has left: processes, network namespaces, disks and files. A watcher runs it when the process
that started the cluster has ended, however it did.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock.cluster import networks
from penstock.cluster.brokers import Cluster, wait_for
from penstock.cluster.plans import DEFAULT_PORT, PEER_PORTS, PROXIED_PORTS, Plan
from penstock.errors import ClusterError
from penstock.java.downloads import Tell, run_program, silent

LAST_PORT: Final = 60_000
END_TIMEOUT_S: Final = 60.0
MOUNT_TIMEOUT_S: Final = 20.0
MOUNTS: Final = Path("/proc/self/mounts")

# Its standard input ends with the process that holds the other end. Modules are imported only then: it stays small.
WATCHER: Final = """
import os, runpy, sys
sys.stdin.buffer.read()
if os.path.isdir(sys.argv[1]):
    runpy.run_module("penstock.cluster.temporary", run_name="__main__", alter_sys=True)
"""


@contextlib.contextmanager
def temporary_cluster(
    jars: Path | None = None,
    tell: Tell = silent,
    settings: Mapping[str, str] | None = None,
    network: networks.Network | None = None,
    disk_mb: int | None = None,
    host: str | None = None,
) -> Iterator[Cluster]:
    """A cluster of three brokers that is taken down and removed in the end, also after kill -9 of this process.

    `settings` are broker settings, as `--config` of `penstock cluster up`; `network` is the best one, unless given.
    With `disk_mb`, each broker has a disk (tmpfs) of that size, where this process may mount one. With `host`, all
    listen at that address of this machine, and cannot be isolated.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-cluster-", ignore_cleanup_errors=True) as name, _watched(name):
        folder = Path(name)
        if host is None:
            plan = Plan(network=network or networks.best_network(), settings=settings or {})
        else:
            plan = Plan(network="loopback", host=host, settings=settings or {})
        try:
            if disk_mb is not None:
                for number in range(1, plan.brokers + 1):
                    _mount_disk(folder / f"broker-{number}" / "data", disk_mb)
            cluster = Cluster.up(folder, with_free_ports(plan), jars, tell)
            try:
                yield cluster
            finally:
                cluster.kill_all()
                cluster.down()
        finally:
            _unmount_disks(folder)


@contextlib.contextmanager
def _watched(folder: str) -> Iterator[None]:
    """While a process of its own waits for the end of this one, to remove what it leaves in the folder."""
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCHER, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        # The folder is removed after this: then there is nothing left to do for it.
        watcher.kill()
        watcher.communicate(timeout=END_TIMEOUT_S)


def remove(folder: Path) -> None:
    """Remove a cluster that nobody uses any more. Nothing is done for what is not there."""
    wait_for(lambda: not _kill_processes(folder), END_TIMEOUT_S)
    with contextlib.suppress(ClusterError):
        Cluster.at(folder).down()
    _unmount_disks(folder)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> list[int]:
    """The brokers that run on data below this folder, also those that `cluster.json` does not list yet."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if re.search(rb"%b/(.*/)?broker-" % re.escape(bytes(folder)), (process / "cmdline").read_bytes()):
                found.append(int(process.name))
    return found


def _kill_processes(folder: Path) -> list[int]:
    """Those that were still there."""
    found = processes_of(folder)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def _mount_disk(folder: Path, size_mb: int) -> None:
    """Make a folder a disk of its own. It stays an ordinary folder where this process may not mount."""
    folder.mkdir(parents=True)
    if sys.platform == "linux" and os.geteuid() == 0:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "penstock", str(folder)]
        run_program(command, timeout_s=MOUNT_TIMEOUT_S)


def _unmount_disks(folder: Path) -> None:
    if not MOUNTS.exists():
        return
    for line in MOUNTS.read_text().splitlines():
        mounted = line.split()[1]
        if mounted.startswith(f"{folder}/"):
            run_program(["umount", "-l", mounted], timeout_s=MOUNT_TIMEOUT_S)


def with_free_ports(plan: Plan) -> Plan:
    """The plan with the first range of ports that nobody uses on loopback."""
    for port in range(DEFAULT_PORT, LAST_PORT, PEER_PORTS + PROXIED_PORTS):
        chosen = msgspec.structs.replace(plan, port=port)
        try:
            networks.check_ports(chosen.ports(), chosen.host)
        except ClusterError:
            continue
        return chosen
    raise ClusterError(f"no free ports from {DEFAULT_PORT} to {LAST_PORT}: start a cluster with --port, and drill that")


if __name__ == "__main__":
    remove(Path(sys.argv[1]))
