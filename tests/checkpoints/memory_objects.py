"""An object store in memory, for tests without a server: how versions follow each other, and who overtakes whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence


class MemoryObjects:
    """An `ObjectStore`. `before_swap` is called just before a manifest is compared and set."""

    where = "memory"
    inline_bytes = 300
    new_bytes = 200
    can_remove_manifests = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stamps = 0
        self._manifests: dict[tuple[str, str], tuple[bytes, str]] = {}
        self._parts: dict[tuple[str, str], dict[str, bytes]] = {}
        self.reads = 0
        self.before_swap: Callable[[], object] | None = None

    def read_manifest(self, group: str, name: str) -> tuple[bytes, str] | None:
        self.reads += 1
        return self._manifests.get((group, name))

    def manifests(self, group: str, prefix: str = "") -> Mapping[str, tuple[bytes, str]]:
        with self._lock:
            found = {name: manifest for (owner, name), manifest in self._manifests.items() if owner == group}
        return {name: manifest for name, manifest in found.items() if name.startswith(prefix)}

    def swap_manifest(self, group: str, name: str, stamp: str | None, data: bytes) -> str | None:
        if self.before_swap is not None:
            happen, self.before_swap = self.before_swap, None
            happen()
        with self._lock:
            now = self._manifests.get((group, name))
            if (None if now is None else now[1]) != stamp:
                return None
            self._stamps += 1
            self._manifests[group, name] = data, str(self._stamps)
            return str(self._stamps)

    def remove_manifest(self, group: str, name: str, stamp: str) -> None:
        with self._lock:
            if self._manifests.get((group, name), (b"", ""))[1] == stamp:
                del self._manifests[group, name]

    def groups(self) -> Sequence[str]:
        return sorted({group for group, _ in self._manifests})

    def put_part(self, group: str, name: str, part: str, data: bytes) -> None:
        with self._lock:
            self._parts.setdefault((group, name), {})[part] = data

    def get_part(self, group: str, name: str, part: str) -> bytes | None:
        return self._parts.get((group, name), {}).get(part)

    def parts(self, group: str, name: str) -> Sequence[str]:
        with self._lock:
            return sorted(self._parts.get((group, name), {}))

    def remove_parts(self, group: str, name: str, parts: Collection[str]) -> None:
        with self._lock:
            for part in parts:
                self._parts.get((group, name), {}).pop(part, None)

    def close(self) -> None: ...
