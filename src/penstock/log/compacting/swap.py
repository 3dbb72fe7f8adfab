"""Replacing segments by compacted ones so that a crash leaves either all of the old or all of the new.

The new files are complete and durable under another name before a small manifest says which segments they replace.
Writing the manifest is the decision; executing it can be repeated after any crash.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import StorageError
from penstock.log.segment import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, Resources, segment_name
from penstock.log.statefile import read_state, write_state

MANIFEST: Final = "swap"


class SwapManifest(msgspec.Struct, frozen=True, kw_only=True):
    remove: list[int]
    """Base offsets of the segments to remove."""
    install: list[tuple[int, int]]
    """Base offset and size of each cleaned file that replaces them."""


def cleaned_path(folder: Path, base_offset: int, suffix: str) -> Path:
    """The name of a cleaned file until the swap."""
    return folder / (segment_name(base_offset) + suffix + CLEANED_SUFFIX)


def decide_swap(folder: Path, manifest: SwapManifest, resources: Resources) -> None:
    """Store the decision. Raises StorageError, and decides nothing, if a cleaned file is not as it was written."""
    for base, size in manifest.install:
        _check_size(cleaned_path(folder, base, LOG_SUFFIX), size)
        _check_size(cleaned_path(folder, base, INDEX_SUFFIX), None)
    resources.disk.sync_folder(folder)
    write_state(folder / MANIFEST, msgspec.msgpack.encode(manifest), resources.disk)


def finish_swap(folder: Path, resources: Resources) -> None:
    """Execute a swap that was decided, if there is one. Nothing is removed before its replacement exists."""
    content = read_state(folder / MANIFEST)
    if content is None:
        return
    manifest = msgspec.msgpack.decode(content, type=SwapManifest)
    for base, size in manifest.install:
        # The index first: an index that does not match its segment is ignored, so a reader in another process still
        # sees the old segment.
        for suffix in (INDEX_SUFFIX, LOG_SUFFIX):
            cleaned = cleaned_path(folder, base, suffix)
            if cleaned.exists():
                cleaned.rename(folder / (segment_name(base) + suffix))
        _check_size(folder / (segment_name(base) + LOG_SUFFIX), size)
    for base in set(manifest.remove) - {base for base, _ in manifest.install}:
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX):
            (folder / (segment_name(base) + suffix)).unlink(missing_ok=True)
    resources.disk.sync_folder(folder)
    (folder / MANIFEST).unlink()
    resources.disk.sync_folder(folder)


def _check_size(path: Path, size: int | None) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise StorageError(f"{path} is missing; the segments that it was to replace are untouched") from None
    if size is not None and found != size:
        raise StorageError(f"{path} has {found} bytes instead of {size}; the segments it was to replace are untouched")
