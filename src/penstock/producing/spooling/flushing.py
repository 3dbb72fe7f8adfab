"""Group commit: one sync of the disk for everybody who waits for one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.errors import StorageError


class GroupFlush:
    """The first who waits syncs for all that were there when it began; the others wait for it, or for the next."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reached = 0
        self._busy = False
        self.failed: str | None = None
        """Why nothing can be made durable any more. A sync that failed is never tried again: what the operating system
        has thrown away is unknown."""

    def wait_for(self, end: int, sync: Callable[[], int]) -> None:
        """Return once everything before `end` is durable. `sync` makes it so, and gives how far it came."""
        while True:
            with self._changed:
                while self._busy and self._reached < end and self.failed is None:
                    self._changed.wait()
                if self.failed is not None and self._reached < end:
                    raise StorageError(self.failed)
                if self._reached >= end:
                    return
                self._busy = True
            self._run(sync)

    def _run(self, sync: Callable[[], int]) -> None:
        reached = 0
        failed = "the sync was interrupted"
        try:
            reached = sync()
            failed = ""
        except OSError as error:
            failed = (
                f"the disk could not make the spool durable ({error.strerror}): it takes no more records until it is "
                "opened again. Those that were taken before are kept"
            )
        finally:
            with self._changed:
                self._busy = False
                self._reached = max(self._reached, reached)
                self.failed = self.failed or failed or None
                self._changed.notify_all()
