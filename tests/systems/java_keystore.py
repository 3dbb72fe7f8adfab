"""Certificates in the form that Java servers read."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.secured_kafka import make_certificates


def make_keystore(folder: Path) -> Path:
    """A key for 127.0.0.1, with the password `changeit`; `ca.pem` beside it is the authority to trust."""
    make_certificates(folder, folder / "ca.pem", folder / "server.pem")
    export = ["openssl", "pkcs12", "-export", "-in", "server.pem", "-out", "server.p12", "-password", "pass:changeit"]
    subprocess.run(export, cwd=folder, check=True, capture_output=True, timeout=60)
    return folder / "server.p12"
