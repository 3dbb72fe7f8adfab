"""A real RabbitMQ on loopback, in a process that the test owns."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from tests import real_parts
from tests.servers import ServerProcess, free_ports, wait_for_start

PLUGINS: Final = ("rabbitmq_stream", "rabbitmq_amqp1_0")
INSIDE: Final = "/srv"
"""Where RabbitMQ 4, which runs in a chroot, finds the folder of its node."""
_MOUNT_AND_RUN: Final = 'mount --bind "$1" "$2/srv" && mount -t proc proc "$2/proc" && shift && exec chroot "$@"'


class RabbitMq:
    """One node of RabbitMQ in a folder of its own, with AMQP 0-9-1 and 1.0 on one port, and streams on another.

    `version` 3 is that of the machine's packages, 4 that of the part `rabbitmq-4`. `settings` are more lines of
    rabbitmq.conf, in which `{folder}`, `{management_port}`, `{tls_port}` and `{tls_stream_port}` stand for those of the
    node.
    """

    def __init__(
        self, folder: Path, version: Literal[3, 4] = 3, *, plugins: Sequence[str] = (), settings: str = ""
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port, self.tls_port, self.stream_port, self.tls_stream_port, *ports = free_ports(7)
        self.management_port, self._distribution_port, self._epmd_port = ports
        self._major = version
        self._plugins = (*PLUGINS, *plugins)
        self._settings = settings
        self.name = f"penstock-{uuid.uuid4().hex[:8]}@localhost"
        self._process: ServerProcess | None = None

    def join(self, other: RabbitMq, settings: str, secret: str) -> None:
        """Find and trust the same nodes as another. Before `start`."""
        self._epmd_port = other._epmd_port
        self._settings += settings
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(secret)
        cookie.chmod(0o400)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start on the folder and ports of the first start; returns when it serves."""
        self.launch()
        self.wait_until_it_serves()

    def launch(self) -> None:
        (self.folder / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].")
        inside = INSIDE if self._major == 4 else str(self.folder)
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.local = 127.0.0.1:{self.port}\n"
            f"stream.listeners.tcp.local = 127.0.0.1:{self.stream_port}\n"
            "loopback_users = none\n"
            "vm_memory_high_watermark.relative = 0.8\n"
            "disk_free_limit.absolute = 100MB\n"
            + self._settings.format(
                folder=inside,
                management_port=self.management_port,
                tls_port=self.tls_port,
                tls_stream_port=self.tls_stream_port,
            )
        )
        self._process = ServerProcess(
            self._command("rabbitmq-server"), self.folder / "output.txt", environment=self.environment()
        )

    def wait_until_it_serves(self) -> None:
        assert self._process is not None, "RabbitMQ has not been started"
        wait_for_start(self._process, lambda: answers(self.port))

    def environment(self) -> dict[str, str]:
        inside = INSIDE if self._major == 4 else str(self.folder)
        return {
            "HOME": inside,
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_CONFIG_FILE": f"{inside}/rabbitmq.conf",
            "RABBITMQ_MNESIA_BASE": f"{inside}/data",
            "RABBITMQ_LOG_BASE": f"{inside}/logs",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{inside}/enabled_plugins",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_RELAXED_COMMAND_CHECK": "true",  # so that it can be told to end when its node was killed
        }

    @property
    def version(self) -> str:
        found = re.search(r"RabbitMQ (\d+\.\d+\.\d+)", "".join(path.read_text() for path in self._logs()))
        return found[1] if found else "unknown"

    def _logs(self) -> list[Path]:
        return [self.folder / "output.txt", *sorted((self.folder / "logs").glob("*.log"))]

    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl` on the node, and return what it says."""
        done = subprocess.run(
            [*self._command("rabbitmqctl"), "--node", self.name, *arguments],
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kill(self) -> None:
        """SIGKILL. RabbitMQ writes late which queues and streams it has, Mnesia's log after 2 s and the tables of Raft
        servers after 0.5 s, so that is written first: else a new queue is forgotten, or has no leader any more."""
        assert self._process is not None, "RabbitMQ has not been started"
        self.control("eval", "mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()].")
        self._process.kill()

    def restart(self) -> None:
        self.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
        if self._process is not None and self._major == 3:
            # The port mapper that the node has started goes on without it.
            subprocess.run(
                ["epmd", "-port", str(self._epmd_port), "-kill"],
                env={**os.environ, **self.environment()},
                capture_output=True,
                timeout=10,
                check=False,
            )

    def _command(self, program: str) -> list[str]:
        """How a program of RabbitMQ is run. That of version 4 has its own mounts, where its folder is /srv, and its own
        process ids, so that nothing that it has started outlives it."""
        if self._major == 3:
            return [str(Path(real_parts.rabbitmq_server()).with_name(program))]
        root = real_parts.rabbitmq_4()
        [found] = root.glob(f"usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/{program}")
        own = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
        return [*own, "sh", "-c", _MOUNT_AND_RUN, "sh", str(self.folder), str(root), f"/{found.relative_to(root)}"]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextmanager
def cluster_of(folder: Path, count: int) -> Iterator[list[RabbitMq]]:
    """Nodes of RabbitMQ 4 that form a cluster, while they run."""
    nodes = [RabbitMq(folder / str(number), 4) for number in range(count)]
    settings = "cluster_formation.peer_discovery_backend = classic_config\n" + "".join(
        f"cluster_formation.classic_config.nodes.{number} = {node.name}\n" for number, node in enumerate(nodes, 1)
    )
    secret = uuid.uuid4().hex
    for node in nodes:
        node.join(nodes[0], settings, secret)
    try:
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_until_it_serves()
        yield nodes
    finally:
        for node in nodes:
            node.stop()


def answers(port: int) -> bool:
    """Whether an AMQP 0-9-1 server behind the port answers the protocol header."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
    except OSError:
        return False
