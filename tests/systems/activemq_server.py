"""A real Apache ActiveMQ Classic on loopback, in a process that the test owns."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests import real_parts
from tests.servers import QUICK_START, ServerProcess, free_ports, wait_for_start

USER: Final = "penstock"
STRANGER: Final = "stranger"
"""A user who may connect, and do nothing else."""
PASSWORD: Final = "s3cret/+"
LARGEST_BYTES: Final = 1_000_000

BROKER: Final = """<?xml version="1.0"?>
<beans xmlns="http://www.springframework.org/schema/beans"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
    xsi:schemaLocation="http://www.springframework.org/schema/beans
        http://www.springframework.org/schema/beans/spring-beans.xsd
        http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="penstock" dataDirectory="{folder}/data"
      schedulerSupport="true" useJmx="false" advisorySupport="false" persistent="true">
    <persistenceAdapter>
      <kahaDB directory="{folder}/data/kahadb" journalMaxFileLength="8mb" checkpointInterval="1000"
        cleanupInterval="1000"/>
    </persistenceAdapter>
    <systemUsage><systemUsage>
      <memoryUsage><memoryUsage limit="64 mb"/></memoryUsage>
      <storeUsage><storeUsage limit="{store}"/></storeUsage>
      <tempUsage><tempUsage limit="100 mb"/></tempUsage>
    </systemUsage></systemUsage>
    <plugins>
      <simpleAuthenticationPlugin>
        <users>
          <authenticationUser username="{user}" password="{password}" groups="users"/>
          <authenticationUser username="{stranger}" password="{password}" groups="strangers"/>
        </users>
      </simpleAuthenticationPlugin>
      <authorizationPlugin><map><authorizationMap><authorizationEntries>
        <authorizationEntry queue="&gt;" read="users" write="users" admin="users"/>
        <authorizationEntry topic="&gt;" read="users" write="users" admin="users"/>
      </authorizationEntries></authorizationMap></map></authorizationPlugin>
    </plugins>
    {tls_context}
    <transportConnectors>{connectors}</transportConnectors>
  </broker>
</beans>
"""
LOGGING: Final = """
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5level [%logger] %msg%n
"""


class ActiveMq:
    """One ActiveMQ in a folder of its own: STOMP, AMQP 1.0, and STOMP with TLS if given a keystore.

    It creates queues that are missing. STOMP messages are limited to `LARGEST_BYTES`.
    """

    def __init__(self, folder: Path, keystore: Path | None = None, *, store: str = "1 gb") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port, self.amqp_port, self.tls_port = free_ports(3)
        self.keystore = keystore
        self._store = store
        self._process: ServerProcess | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        [jar] = (real_parts.activemq_folder() / "lib").glob("activemq-broker-*.jar")
        return jar.stem.removeprefix("activemq-broker-")

    def start(self) -> None:
        """Start on the folder and ports of the first start; returns when it serves."""
        home = real_parts.activemq_folder()
        self._configure()
        folders = {"home": home, "base": self.folder, "conf": self.folder, "data": self.folder / "data"}
        options = (*QUICK_START, "-Xmx256m", *(f"-Dactivemq.{name}={path}" for name, path in folders.items()))
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        command = [real_parts.java(), *options, logging, "-jar", str(home / "bin" / "activemq.jar")]
        command += ["start", f"xbean:file:{self.folder / 'activemq.xml'}"]
        self._process = ServerProcess(command, self.folder / "output.txt")
        wait_for_start(self._process, lambda: answers(self.port))

    def _configure(self) -> None:
        limits = f"wireFormat.maxDataLength={LARGEST_BYTES}"
        urls = {
            "stomp": f"stomp+nio://127.0.0.1:{self.port}?{limits}",
            "amqp": f"amqp://127.0.0.1:{self.amqp_port}?wireFormat.maxFrameSize={LARGEST_BYTES}",
        }
        tls_context = ""
        if self.keystore is not None:
            urls["tls"] = f"stomp+ssl://127.0.0.1:{self.tls_port}?{limits}"
            store = f'keyStore="{self.keystore}" keyStorePassword="changeit" keyStoreType="PKCS12"'
            tls_context = f"<sslContext><sslContext {store}/></sslContext>"
        connectors = "".join(f'<transportConnector name="{name}" uri="{uri}"/>' for name, uri in urls.items())
        broker = BROKER.format(
            folder=self.folder,
            store=self._store,
            user=USER,
            stranger=STRANGER,
            password=PASSWORD,
            connectors=connectors,
            tls_context=tls_context,
        )
        (self.folder / "activemq.xml").write_text(broker)
        (self.folder / "log4j2.properties").write_text(LOGGING)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None, "ActiveMQ has not been started"
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


def answers(port: int) -> bool:
    """Whether a STOMP server behind the port answers a CONNECT, if only to refuse it."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"CONNECT\naccept-version:1.2\nhost:localhost\n\n\0")
            return connection.recv(5) in (b"CONNE", b"ERROR")
    except OSError:
        return False
