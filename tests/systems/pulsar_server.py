"""A real Apache Pulsar on loopback, broker and bookie in one process that the test owns."""

from __future__ import annotations

import base64
import hmac
import json
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests import real_parts
from tests.servers import QUICK_START, ServerProcess, free_ports, wait_for_start
from tools import parts

START_TIMEOUT_S: Final = 180.0
OPENED: Final = (
    "java.base/java.io",
    "java.base/java.util.zip",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
"""Parts of Java that BookKeeper and Netty look into."""
METADATA_DRIVERS: Final = {
    "bookkeeper.metadata.bookie.drivers": "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
    "bookkeeper.metadata.client.drivers": "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
}
SUPERUSER: Final = "boss"
PROVIDERS: Final = ("Token", "Basic", "Tls")
PASSWORD: Final = "right"
PASSWORD_HASH: Final = "$apr1$tests$vDkqrKSmoNbCI92rSvHKS/"
"""Of `openssl passwd -apr1`."""
SECRET: Final = b"a secret of the tests, of at least 32 bytes"
LISTENER: Final = "proxied"
"""The name of the listener that clients behind a proxy ask for: brokers tell their clients where to connect to."""


class PulsarServer:
    """One Pulsar in a folder of its own, with its standalone settings and a journal that is synced to the disk."""

    def __init__(self, folder: Path, *, certificates: Path | None = None) -> None:
        """`certificates`: a folder with `ca.pem`, `server.key` and `server.crt`. With it, clients need TLS and a
        token."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port, self.web_port, self._bookie_port, self._tls_port, self._tls_web_port = free_ports(5)
        self._settings = {
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.web_port),
            "bindAddress": "127.0.0.1",
            "bookiePort": str(self._bookie_port),
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "journalSyncData": "true",
            "numIOThreads": "2",
            "numHttpServerThreads": "8",
            "internalListenerName": "internal",
            "httpServerEnabled": "false",
            "advertisedListeners": f"internal:pulsar://127.0.0.1:{self.port}",
        }
        if certificates is not None:
            self._settings |= self._secured(certificates)
        self._process: ServerProcess | None = None

    def advertise(self, proxy_port: int) -> None:
        """Have the next start tell clients of the listener `LISTENER` to connect to a proxy."""
        self._settings["advertisedListeners"] += f",{LISTENER}:pulsar://127.0.0.1:{proxy_port}"

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}?admin_url={self.admin_url}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def tls_url(self) -> str:
        return f"pulsar+ssl://127.0.0.1:{self._tls_port}?admin_url=https://127.0.0.1:{self._tls_web_port}"

    def start(self) -> None:
        """Start on the folder, and on the ports of the first start; returns when it answers."""
        self._process = ServerProcess(self._command(), self.folder / "output.txt")
        wait_for_start(self._process, self.is_healthy, START_TIMEOUT_S)

    def kill(self) -> None:
        assert self._process is not None, "Pulsar has not been started"
        self._process.kill()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()

    def is_healthy(self) -> bool:
        request = urllib.request.Request(f"{self.admin_url}/admin/v2/brokers/health")
        request.add_header("Authorization", f"Bearer {token_for(SUPERUSER)}")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.read().strip() == b"ok")
        except (OSError, urllib.error.URLError):
            return False

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

    def _secured(self, certificates: Path) -> dict[str, str]:
        """Settings for TLS and tokens beside the plain ports, which the broker itself uses."""
        token = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
        kinds = (f"org.apache.pulsar.broker.authentication.AuthenticationProvider{each}" for each in PROVIDERS)
        users = self.folder / "users"
        users.write_text(f"ann:{PASSWORD_HASH}\n", "utf-8")
        return {
            "brokerServicePortTls": str(self._tls_port),
            "webServicePortTls": str(self._tls_web_port),
            "tlsCertificateFilePath": str(certificates / "server.crt"),
            "tlsKeyFilePath": str(certificates / "server.key"),
            "tlsTrustCertsFilePath": str(certificates / "ca.pem"),
            "advertisedListeners": f"internal:pulsar://127.0.0.1:{self.port},"
            f"internal:pulsar+ssl://127.0.0.1:{self._tls_port}",
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "authenticationProviders": ",".join(kinds),
            "basicAuthConf": f"file://{users}",
            "tokenSecretKey": f"data:;base64,{base64.b64encode(SECRET).decode()}",
            "superUserRoles": f"{SUPERUSER},ann,127.0.0.1",  # which is the name in the certificate
            "brokerClientAuthenticationPlugin": token,
            "brokerClientAuthenticationParameters": f"token:{token_for(SUPERUSER)}",
        }

    def _command(self) -> list[str]:
        home = real_parts.pulsar_folder()
        folders = ("--bookkeeper-dir", str(self.folder / "bookkeeper"), "--metadata-dir", str(self.folder / "metadata"))
        return [
            real_parts.java(),
            *QUICK_START,
            "-Xms256m",
            "-Xmx512m",
            "-XX:MaxDirectMemorySize=512m",
            "-Djava.net.preferIPv4Stack=true",
            "-Dio.netty.tryReflectionSetAccessible=true",
            "-Dpulsar.allocator.exit_on_oom=true",
            "-Dlog4j2.level=WARN",
            *(f"--add-opens={each}=ALL-UNNAMED" for each in OPENED),
            *(f"-D{name}={value}" for name, value in METADATA_DRIVERS.items()),
            f"-Dpulsar.log.dir={self.folder}",
            "-cp",
            f"{home / 'lib'}/*:{home / 'conf'}",
            "org.apache.pulsar.PulsarStandaloneStarter",
            "--config",
            str(self._configuration(home)),
            "--no-functions-worker",
            "--no-stream-storage",
            "--bookkeeper-port",
            str(self._bookie_port),
            *folders,
        ]

    def _configuration(self, home: Path) -> Path:
        """The settings that come with Pulsar, and ours in their place."""
        lines = (home / "conf" / "standalone.conf").read_text("utf-8").splitlines()
        kept = [line for line in lines if line.partition("=")[0] not in self._settings]
        text = "\n".join([*kept, *(f"{name}={value}" for name, value in self._settings.items())])
        configuration = self.folder / "standalone.conf"
        configuration.write_text(text, "utf-8")
        return configuration


def token_for(role: str, secret: bytes = SECRET) -> str:
    """A JSON web token that says that its bearer has this role."""

    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    head, body = json.dumps({"alg": "HS256"}), json.dumps({"sub": role})
    signed = f"{encoded(head.encode())}.{encoded(body.encode())}"
    return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), 'sha256'))}"


def version() -> str:
    return parts.PULSAR_ARCHIVE.split(":")[2]


def admin(server: PulsarServer, method: str, path: str, body: object = None) -> object:
    """What Pulsar's own administration answers."""
    request = urllib.request.Request(
        f"{server.admin_url}/admin/v2/{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None
