"""Whose folder is it? The address that a broker leaves in its folder may have outlived it.

It is believed when three things agree: the process that wrote the address is the one that has taken the folder's lock,
what answers at the address is a broker of the folder's cluster, and the lock is held. A killed broker, a process id or
a port that has been given to somebody else, and a copied folder each fail one of them.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.broker import BrokerAddress, read_address
from penstock.log.store import LOCK_FILE
from penstock.streams.kafka.plain import NotKafkaError, PlainConnection
from penstock.streams.url import Host

_ANSWER_TIMEOUT_S: Final = 2.0
_LONGEST_PID: Final = 32


@dataclass(frozen=True, slots=True)
class Found:
    """A broker that serves the folder, and a connection to it. While that is open, the broker has a client."""

    address: BrokerAddress
    connection: PlainConnection


def find(folder: Path) -> Found | None:
    """The folder's broker, if it runs and answers."""
    address = read_address(folder)
    if address is None or owner_pid(folder) != address.pid:
        return None
    try:
        connection = PlainConnection(Host(address.host, address.port), _ANSWER_TIMEOUT_S)
    except OSError:
        return None
    try:
        # The process is looked at again: a broker of a copied folder may just have taken the lock.
        is_it = connection.cluster_id() == address.cluster_id and is_owned(folder) and owner_pid(folder) == address.pid
        if is_it:
            return Found(address, connection)
    except (OSError, NotKafkaError):
        pass
    connection.close()
    return None


def owner_pid(folder: Path) -> int | None:
    """The process that took the folder's lock last. Whether it still holds it, `is_owned` knows."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            text = file.read(_LONGEST_PID).strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return int(text) if text.isdigit() else None


def is_owned(folder: Path) -> bool:
    """Whether a living process holds the folder's lock.

    Where nobody does, it is taken for an instant to find out. A broker that starts in that instant is refused, so ask
    only when there is reason to think that somebody holds it.
    """
    try:
        fd = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
