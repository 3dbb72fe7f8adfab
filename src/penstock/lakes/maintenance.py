"""Compaction in a thread of its own, while a sink goes on writing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.lakes.formats import Compaction
from penstock.lakes.table import LakeTable

logger = logging.getLogger(__name__)


class Maintenance:
    """Compacts tables when asked, and then deletes the files that only old versions have.

    It has connections of its own. What fails is logged, and tried again the next time: nobody waits for it.
    """

    def __init__(self, tables: Sequence[LakeTable], compaction: Compaction) -> None:
        self._tables = tables
        self._compaction = compaction
        self._asked = threading.Event()
        self._stopping = False
        self.merged = 0
        """How many small files were merged."""
        self._thread = threading.Thread(target=self._run, name="penstock-lake-compaction", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Compact soon, if there are enough small files."""
        self._asked.set()

    def stop(self) -> None:
        """Finish what is asked for or running, and end."""
        self._stopping = True
        self._asked.set()
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._asked.wait()
            is_last = self._stopping
            self._asked.clear()
            for table in self._tables:
                try:
                    self.merged += table.compact(self._compaction)
                except PenstockError as error:
                    logger.warning("%s is not compacted this time: %s", table.label, error)
                except Exception:
                    logger.exception("%s cannot be compacted; writing continues", table.label)
