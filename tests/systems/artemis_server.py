"""A real Apache ActiveMQ Artemis on loopback, in a process that the test owns."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests import real_parts
from tests.servers import QUICK_START, ServerProcess, free_ports, wait_for_start
from tests.systems.amqp1_probe import answers

USER: Final = "penstock"
PASSWORD: Final = "s3cret/+"

BROKER: Final = """<?xml version="1.0"?>
<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>penstock</name>
    <journal-type>NIO</journal-type>
    <paging-directory>{folder}/data/paging</paging-directory>
    <bindings-directory>{folder}/data/bindings</bindings-directory>
    <journal-directory>{folder}/data/journal</journal-directory>
    <large-messages-directory>{folder}/data/large-messages</large-messages-directory>
    <journal-min-files>2</journal-min-files>
    <journal-file-size>1M</journal-file-size>
    <max-disk-usage>99</max-disk-usage>
    <acceptors>{acceptors}</acceptors>
    <security-settings>
      <security-setting match="#">{permissions}</security-setting>
      <security-setting match="refused.#"/>
      <security-setting match="reading.#">{reading}</security-setting>
    </security-settings>
    <address-settings>
      <address-setting match="#">
        <dead-letter-address>DLQ</dead-letter-address>
        <auto-delete-queues>false</auto-delete-queues>
        <auto-delete-addresses>false</auto-delete-addresses>
        <max-delivery-attempts>10</max-delivery-attempts>
      </address-setting>
      <address-setting match="nowhere.#">
        <auto-create-queues>false</auto-create-queues>
        <auto-create-addresses>false</auto-create-addresses>
      </address-setting>
      <address-setting match="full.#">
        <max-size-messages>2</max-size-messages>
        <address-full-policy>FAIL</address-full-policy>
      </address-setting>
    </address-settings>
    <addresses><address name="DLQ"><anycast><queue name="DLQ"/></anycast></address></addresses>
  </core>
</configuration>
"""
BOOTSTRAP: Final = """<?xml version="1.0"?>
<broker xmlns="http://activemq.apache.org/schema">
  <jaas-security domain="activemq"/>
  <server configuration="file:{folder}/etc/broker.xml"/>
</broker>
"""
MANAGEMENT: Final = '<management-context xmlns="http://activemq.apache.org/schema"/>'
LOGIN: Final = """activemq {
  org.apache.activemq.artemis.spi.core.security.jaas.PropertiesLoginModule required
    org.apache.activemq.jaas.properties.user="users.properties"
    org.apache.activemq.jaas.properties.role="roles.properties";
};
"""
LOGGING: Final = """
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5level [%logger] %msg%n
"""
PERMISSIONS: Final = (
    "createNonDurableQueue",
    "createDurableQueue",
    "deleteDurableQueue",
    "createAddress",
    "consume",
    "browse",
    "send",
)


class Artemis:
    """One Artemis in a folder of its own, with AMQP 1.0 on one port, and with TLS on another if given a keystore.

    It creates queues that are missing, except those named `nowhere.*`; nobody may use those named `refused.*`, or
    send to those named `reading.*`; those named `full.*` hold two messages.
    """

    def __init__(self, folder: Path, keystore: Path | None = None, protocols: str = "AMQP") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port, self.tls_port = free_ports(2)
        self.keystore = keystore
        self._protocols = protocols
        self._process: ServerProcess | None = None

    @property
    def version(self) -> str:
        [jar] = (real_parts.artemis_folder() / "lib").glob("artemis-server-[0-9]*.jar")
        return jar.stem.removeprefix("artemis-server-")

    def start(self) -> None:
        """Start on the folder and ports of the first start; returns when it serves."""
        home, etc = real_parts.artemis_folder(), self.folder / "etc"
        self._configure(etc)
        logging = f"-Dlog4j2.configurationFile={etc / 'log4j2.properties'}"
        options = (*QUICK_START, "-Xmx256m", f"-Dartemis.home={home}", f"-Dartemis.instance={self.folder}", logging)
        login = f"-Djava.security.auth.login.config={etc / 'login.config'}"
        command = [real_parts.java(), *options, login, "-cp", f"{home}/lib/*:{etc}"]
        command += ["org.apache.activemq.artemis.boot.Artemis", "run"]
        self._process = ServerProcess(command, self.folder / "output.txt")
        wait_for_start(self._process, lambda: answers(self.port))

    def _configure(self, etc: Path) -> None:
        etc.mkdir(exist_ok=True)
        common = f"protocols={self._protocols};amqpMinLargeMessageSize=102400;maxFrameSize=131072"
        acceptors = f'<acceptor name="amqp">tcp://127.0.0.1:{self.port}?{common}</acceptor>'
        if self.keystore is not None:
            tls = f"sslEnabled=true;keyStorePath={self.keystore};keyStorePassword=changeit;keyStoreType=PKCS12"
            acceptors += f'<acceptor name="tls">tcp://127.0.0.1:{self.tls_port}?{common};{tls}</acceptor>'
        permissions = [f'<permission type="{each}" roles="users"/>' for each in PERMISSIONS]
        reading = [each for each in permissions if '"send"' not in each]
        settings = {"acceptors": acceptors, "permissions": "".join(permissions), "reading": "".join(reading)}
        files = {
            "broker.xml": BROKER.format(folder=self.folder, **settings),
            "bootstrap.xml": BOOTSTRAP.format(folder=self.folder),
            "management.xml": MANAGEMENT,
            "login.config": LOGIN,
            "log4j2.properties": LOGGING,
            "users.properties": f"{USER} = {PASSWORD}\n",
            "roles.properties": f"users = {USER}\n",
        }
        for name, text in files.items():
            (etc / name).write_text(text)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None, "Artemis has not been started"
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
