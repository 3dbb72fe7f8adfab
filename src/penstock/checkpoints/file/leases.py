"""Leases as files: one file each, replaced as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from penstock.checkpoints.file.locks import file_name
from penstock.checkpoints.format import corrupt
from penstock.checkpoints.frames import frame, frames_in, replace_file
from penstock.errors import StoreUnavailableError
from penstock.model import Lease

SUFFIX: Final = ".lease"


class _Lease(msgspec.Struct, array_like=True):
    group: str
    name: str
    owner: str
    epoch: int
    beat: int


def lease_path(folder: Path, name: str) -> Path:
    """The path of the lease of this name."""
    return folder / f"{file_name(name)}{SUFFIX}"


def read_lease(path: Path) -> Lease | None:
    """The lease in a file. CorruptCheckpointError: without it, it is unknown who may write."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailableError(f"{path} cannot be read: {error}") from error
    try:
        ((payload, _),) = frames_in(data, path)
        stored = _DECODER.decode(payload)
    except (ValueError, msgspec.MsgspecError) as error:
        raise corrupt(f"the lease in {path}", str(error)) from error
    return Lease(stored.group, stored.name, stored.owner, stored.epoch, stored.beat)


def write_lease(path: Path, lease: Lease) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = _Lease(lease.group, lease.name, lease.owner, lease.epoch, lease.beat)
        replace_file(path, frame(msgspec.msgpack.encode(stored)))
    except OSError as error:
        raise StoreUnavailableError(f"{path} cannot be written: {error}; check the disk") from error


def leases_in(folder: Path) -> list[Lease]:
    """All leases in a folder, in the order of their names."""
    found = (read_lease(path) for path in folder.glob(f"*{SUFFIX}"))
    return sorted((lease for lease in found if lease is not None), key=lambda lease: lease.name)


_DECODER: Final = msgspec.msgpack.Decoder(_Lease)
