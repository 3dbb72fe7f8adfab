"""Finding the broker of a data folder. The address in the folder may be outdated.

It is valid if the process that wrote it also took the folder's lock, a broker of the folder's cluster answers there,
and the lock is held. A killed broker, a reused process id or port, and a copied folder each fail one of these checks.
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
class FoundBroker:
    """The broker of a folder, and a connection to it, which keeps it from stopping as idle."""

    address: BrokerAddress
    connection: PlainConnection


def find(folder: Path) -> FoundBroker | None:
    """The folder's broker, if it runs and answers."""
    address = read_address(folder)
    if address is None or owner_pid(folder) != address.pid:
        return None
    try:
        connection = PlainConnection(Host(address.host, address.port), _ANSWER_TIMEOUT_S)
    except OSError:
        return None
    try:
        # The process is checked again: the broker of a copied folder may just have taken the lock.
        is_it = connection.cluster_id() == address.cluster_id and is_owned(folder) and owner_pid(folder) == address.pid
        if is_it:
            return FoundBroker(address, connection)
    except (OSError, NotKafkaError):
        pass
    connection.close()
    return None


def owner_pid(folder: Path) -> int | None:
    """The process that took the folder's lock last. `is_owned` says whether the lock is still held."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            text = file.read(_LONGEST_PID).strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return int(text) if text.isdigit() else None


def is_owned(folder: Path) -> bool:
    """Whether a process holds the folder's lock.

    A free lock is taken for an instant, and a broker that starts in that instant fails. So call this only if the lock
    is likely to be held.
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
