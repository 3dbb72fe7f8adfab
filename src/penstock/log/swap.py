"""Replacing segments by their compacted form so that a crash leaves either all of the old or all of the new.

The new files are complete and durable under another name before a small manifest says which segments they replace; the
manifest is the decision. Carrying it out can be repeated as often as a crash interrupts it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from penstock.log.segment import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, Resources, segment_name
from penstock.log.statefile import read_state, write_state

MANIFEST: Final = "swap"


class SwapManifest(msgspec.Struct, frozen=True, kw_only=True):
    remove: list[int]
    """Base offsets of the segments that go."""
    install: list[int]
    """Base offsets of the cleaned files that take their place."""


def decide_swap(folder: Path, manifest: SwapManifest, resources: Resources) -> None:
    resources.disk.sync_folder(folder)
    write_state(folder / MANIFEST, msgspec.msgpack.encode(manifest), resources.disk)


def finish_swap(folder: Path, resources: Resources) -> None:
    """Carry out a swap that was decided, if there is one."""
    content = read_state(folder / MANIFEST)
    if content is None:
        return
    manifest = msgspec.msgpack.decode(content, type=SwapManifest)
    for base in manifest.install:
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX):
            cleaned = folder / (segment_name(base) + suffix + CLEANED_SUFFIX)
            if cleaned.exists():
                cleaned.rename(folder / (segment_name(base) + suffix))
    for base in set(manifest.remove) - set(manifest.install):
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX):
            (folder / (segment_name(base) + suffix)).unlink(missing_ok=True)
    resources.disk.sync_folder(folder)
    (folder / MANIFEST).unlink()
    resources.disk.sync_folder(folder)
