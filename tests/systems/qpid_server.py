"""A real Apache Qpid Broker-J on loopback, in a process that the test owns."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests import real_parts
from tests.servers import QUICK_START, ServerProcess, free_ports, wait_for_start
from tests.systems.amqp1_probe import answers

USER: Final = "penstock"
PASSWORD: Final = "s3cret"
QUEUES: Final[tuple[dict[str, Any], ...]] = (
    {"name": "plain"},
    {"name": "delaying", "holdOnPublishEnabled": True},
    {"name": "dead"},
    {"name": "limited", "maximumDeliveryAttempts": 3, "alternateBinding": {"destination": "dead"}},
)
LARGEST_MESSAGE_BYTES: Final = 1_000_000


class Qpid:
    """One Broker-J in a folder of its own, with AMQP 1.0 on one port.

    It does not create queues, but starts with those of `QUEUES`: `delaying` holds messages until their delivery time,
    for which it looks every 200 ms, and messages of `limited` that failed three times go to `dead`. A client that is
    silent for 10 s is dead; by default, Qpid never thinks so.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (self.port,) = free_ports(1)
        self._process: ServerProcess | None = None

    @property
    def home(self) -> Path:
        [home] = (each for each in real_parts.qpid_folder().iterdir() if each.is_dir())
        return home

    @property
    def version(self) -> str:
        return self.home.name

    def start(self) -> None:
        """Start on the folder and port of the first start; returns when it serves."""
        config = self.folder / "broker.json"
        config.write_text(json.dumps(self._configuration()))
        memory = ("-Xmx192m", "-XX:MaxDirectMemorySize=128m")
        files = (f"-DQPID_WORK={self.folder / 'work'}", f"-Dderby.stream.error.file={self.folder / 'derby.log'}")
        command = [
            real_parts.java(),
            *QUICK_START,
            *memory,
            *files,
            "-cp",
            f"{self.home}/lib/*",
            "org.apache.qpid.server.Main",
        ]
        command += ["-icp", str(config)]
        self._process = ServerProcess(command, self.folder / "output.txt")
        wait_for_start(self._process, lambda: answers(self.port))

    def _configuration(self) -> dict[str, Any]:
        queues = [{"type": "standard", "durable": True, **queue} for queue in QUEUES]
        host = {
            "name": "default",
            "type": "BDB",
            "storePath": "${qpid.work_dir}/default",
            "housekeepingCheckPeriod": 200,
            "queues": queues,
        }
        return {
            "name": "penstock",
            "modelVersion": "9.1",
            "authenticationproviders": [
                {
                    "name": "plain",
                    "type": "Plain",
                    "secureOnlyMechanisms": [],
                    "users": [{"name": USER, "type": "managed", "password": PASSWORD}],
                }
            ],
            "ports": [
                {
                    "name": "AMQP",
                    "context": {
                        "qpid.max_message_size": str(LARGEST_MESSAGE_BYTES),
                        "qpid.port.heartbeatDelay": "10",
                    },
                    "port": self.port,
                    "bindingAddress": "127.0.0.1",
                    "authenticationProvider": "plain",
                    "protocols": ["AMQP_1_0"],
                    "virtualhostaliases": [{"name": "host", "type": "hostnameAlias"}],
                }
            ],
            "virtualhostnodes": [
                {
                    "name": "default",
                    "type": "JSON",
                    "defaultVirtualHostNode": True,
                    "virtualHostInitialConfiguration": json.dumps(host),
                }
            ],
        }

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None, "Qpid has not been started"
        self._process.kill()

    def restart(self) -> None:
        self.start()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
