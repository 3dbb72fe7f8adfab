"""The servers that are compared, each in the ways that matter, started on one disk and reached by one client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.servers import ApacheKafka, Penstock, ServerProcess

REPOSITORY: Final = Path(__file__).resolve().parent.parent

AS_KAFKA_STARTS_ITSELF: Final = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""The options of Kafka's own start script, kafka-server-start."""


class Contender:
    """One server in one configuration, in a folder of its own."""

    def __init__(self, name: str, folder: Path, flush_policy: str, server: ApacheKafka | Penstock) -> None:
        self.name = name
        self.folder = folder
        self.flush_policy = flush_policy
        self.server = server

    @property
    def process(self) -> ServerProcess:
        return self.server.process

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.process.terminate()

    def rss_mb(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"no VmRSS for {self.name}")

    def run(self, workload: str, **options: Any) -> dict[str, float]:
        """Run a client workload against this server in a process of its own."""
        command = [sys.executable, "-m", "benchmarks.client", workload, self.server.bootstrap, json.dumps(options)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=600, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.name}, {workload}: {done.stderr.strip()[-500:] or done.stdout}")
        return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def penstock(folder: Path) -> Contender:
    return Contender("penstock", folder / "penstock", "fsync before the answer", Penstock(folder / "penstock"))


def penstock_os(folder: Path) -> Contender:
    name = "penstock --flush os"
    return Contender(name, folder / "penstock-os", "none", Penstock(folder / "penstock-os", "--flush", "os"))


def kafka(folder: Path) -> Contender:
    return Contender("kafka", folder / "kafka", "none", _kafka(folder / "kafka"))


def kafka_flushing(folder: Path) -> Contender:
    settings = {"log.flush.interval.messages": "1"}
    name = "kafka flush.interval.messages=1"
    where = folder / "kafka-flushing"
    return Contender(name, where, "fsync before the answer", _kafka(where, settings))


def _kafka(folder: Path, settings: Mapping[str, str] | None = None) -> ApacheKafka:
    return ApacheKafka(folder, settings, AS_KAFKA_STARTS_ITSELF)
