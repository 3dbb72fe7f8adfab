"""Every store of ours passes the suite for checkpoint stores."""

from __future__ import annotations

from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.testing.conformance.checkpoints import checkpoint_store
from penstock.testing.conformance.checkpoints.saving import StoreCrashCases
from penstock.testing.conformance.checkpoints.walks import WalkCases
from penstock.testing.conformance.suite import collect
from tests.checkpoints.spoiling import (
    open_file,
    open_postgres,
    open_small_files,
    open_sqlite,
    spoil_memory,
    spoil_postgres,
    spoil_sqlite,
    spoil_version,
)


class SmallPartCases(WalkCases, StoreCrashCases):
    """Parts that are written, merged and removed all the time: nothing is lost, also by a kill."""


TestMemory = checkpoint_store(MemoryCheckpoints, spoil=spoil_memory)
TestSqlite = checkpoint_store(open_sqlite, spoil=spoil_sqlite)
TestFile = checkpoint_store(open_file, spoil=spoil_version)
TestFileWithSmallParts = collect(SmallPartCases, open_small_files)
TestPostgres = checkpoint_store(open_postgres, spoil=spoil_postgres)

del StoreCrashCases, WalkCases, SmallPartCases  # they have no backend, and nothing to show
