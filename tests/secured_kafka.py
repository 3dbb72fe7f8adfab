"""A real Apache Kafka whose listener wants TLS and a login, with certificates made for it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

from tests.servers import ApacheKafka, free_ports

USER: Final = "ada"
PASSWORD: Final = "s3cr&t=%41+#x"
"""With all that means something in a URL."""


class SecuredKafka(ApacheKafka):
    """Its `secure_port` is SASL_SSL with the mechanism PLAIN; the plain one is for looking whether it runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.secure_port, controller_port = free_ports(2)
        self.authority = folder / "ca.pem"
        key_and_certificate = folder / "server.pem"
        make_certificates(folder, self.authority, key_and_certificate)
        plain, secure = f"PLAINTEXT://127.0.0.1:{self.port}", f"SASL_SSL://127.0.0.1:{self.secure_port}"
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        properties = {
            "listeners": f"{plain},{secure},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"{plain},{secure}",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
            "group.initial.rebalance.delay.ms": "0",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(key_and_certificate),
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{module} required user_{USER}="{PASSWORD}";',
        }
        with self._properties.open("a", encoding="utf-8") as file:  # the last one of a name counts
            file.writelines(f"{name}={value}\n" for name, value in properties.items())

    @property
    def secure_url(self) -> str:
        """Everything in the URL."""
        settings = {**self.settings(), "sasl.password": quote(PASSWORD, safe="")}
        return f"kafka://127.0.0.1:{self.secure_port}?" + "&".join(
            f"{name}={value}" for name, value in settings.items()
        )

    def settings(self) -> dict[str, str]:
        """By librdkafka's names."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.authority),
        }

    def settings_file(self) -> Path:
        path = self.folder / "client.properties"
        lines = [f"{name} = {value}" for name, value in self.settings().items()]
        path.write_text("\n".join(["# who we are", "", *lines]) + "\n", "utf-8")
        return path


def make_certificates(folder: Path, authority: Path, key_and_certificate: Path) -> None:
    """An authority, and a key for 127.0.0.1 with a certificate by it. Skips the test where openssl is missing."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not there: install it to make the certificates of a secured Kafka")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run("req", "-x509", *new_key, "-keyout", "ca.key", "-out", authority.name, "-days", "2", "-subj", "/CN=tests")
    run("req", *new_key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=127.0.0.1")
    (folder / "san.txt").write_text("subjectAltName=IP:127.0.0.1\n", "utf-8")
    signing = ("-CA", authority.name, "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san.txt")
    run("x509", "-req", "-in", "server.csr", "-out", "server.crt", *signing)
    parts = [(folder / name).read_text("ascii") for name in ("server.key", "server.crt")]
    key_and_certificate.write_text("".join(parts), "ascii")
