"""Whether an AMQP 1.0 server answers."""

from __future__ import annotations

import socket
from typing import Final

SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"


def answers(port: int) -> bool:
    """Whether a server behind the port answers the protocol header of AMQP 1.0 with SASL."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(SASL_HEADER)
            return connection.recv(8).startswith(b"AMQP\x03\x01")
    except OSError:
        return False
