"""Where a running broker can be found: a small file in its data folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

FILE_NAME: Final = "broker.json"


class BrokerAddress(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    host: str
    port: int
    metrics: str | None = None
    """`host:port` of the metrics endpoint, if there is one."""
    version: str
    cluster_id: str = ""
    """What the broker answers to Metadata: a client of the port can tell whether it is still this broker's."""
    exit_when_idle_s: float | None = None
    """How long without a client until it stops by itself; None: never."""

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"


def write_address(folder: Path, address: BrokerAddress) -> None:
    temporary = folder / (FILE_NAME + ".new")
    try:
        temporary.write_bytes(msgspec.json.encode(address))
        temporary.rename(folder / FILE_NAME)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def remove_address(folder: Path, address: BrokerAddress) -> None:
    """Remove the file of `write_address`, unless another broker has replaced it."""
    if last_address(folder) == address:
        (folder / FILE_NAME).unlink(missing_ok=True)


def last_address(folder: Path) -> BrokerAddress | None:
    """The address that the last broker of this folder wrote; it may have been killed since."""
    try:
        return msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=BrokerAddress)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None


def read_address(folder: Path) -> BrokerAddress | None:
    """The address of this folder's broker; None if there is none that is still alive."""
    address = last_address(folder)
    if address is None:
        return None
    try:
        os.kill(address.pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return address
