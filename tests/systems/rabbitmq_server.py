"""A real RabbitMQ on loopback, in a process that the test owns."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests import real_parts
from tests.servers import ServerProcess, free_ports, wait_for_start

PLUGINS: Final = "[rabbitmq_stream,rabbitmq_amqp1_0]."


class RabbitMq:
    """One node of RabbitMQ in a folder of its own, with AMQP 0-9-1 and 1.0 on one port, and streams on another."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port, self.stream_port, self._distribution_port, self._epmd_port = free_ports(4)
        self._name = f"penstock-{uuid.uuid4().hex[:8]}@localhost"
        self._process: ServerProcess | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start on the folder and ports of the first start; returns when it serves."""
        (self.folder / "enabled_plugins").write_text(PLUGINS)
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.local = 127.0.0.1:{self.port}\n"
            f"stream.listeners.tcp.local = 127.0.0.1:{self.stream_port}\n"
            "loopback_users = none\n"
            "vm_memory_high_watermark.relative = 0.8\n"
            "disk_free_limit.absolute = 100MB\n"
        )
        self._process = ServerProcess(
            [real_parts.rabbitmq_server()], self.folder / "output.txt", environment=self.environment()
        )
        wait_for_start(self._process, lambda: answers(self.port))

    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
        }

    @property
    def version(self) -> str:
        found = re.search(r"RabbitMQ (\d+\.\d+\.\d+)", "".join(path.read_text() for path in self._logs()))
        return found[1] if found else "unknown"

    def _logs(self) -> list[Path]:
        return [self.folder / "output.txt", *sorted((self.folder / "logs").glob("*.log"))]

    def kill(self) -> None:
        """SIGKILL. RabbitMQ 3 writes what it knows about its queues some 2 s late, so that is written first."""
        assert self._process is not None, "RabbitMQ has not been started"
        control = Path(real_parts.rabbitmq_server()).with_name("rabbitmqctl")
        done = subprocess.run(
            [control, "--node", self._name, "eval", "mnesia:sync_log()."],
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self._process.kill()

    def restart(self) -> None:
        self.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            # The port mapper that the node has started goes on without it.
            subprocess.run(
                ["epmd", "-port", str(self._epmd_port), "-kill"],
                env={**os.environ, "ERL_EPMD_RELAXED_COMMAND_CHECK": "true"},
                capture_output=True,
                timeout=10,
                check=False,
            )

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


def answers(port: int) -> bool:
    """Whether an AMQP 0-9-1 server behind the port answers the protocol header."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
    except OSError:
        return False
