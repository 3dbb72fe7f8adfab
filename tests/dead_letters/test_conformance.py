"""Every storage of dead letters keeps the same promises."""

from __future__ import annotations

from penstock.testing.conformance.letters import dead_letters
from tests.dead_letters import openings

TestMemory = dead_letters(openings.in_memory)
TestMemoryByKey = dead_letters(openings.in_memory_by_key)
TestSqlite = dead_letters(openings.in_sqlite)
TestFile = dead_letters(openings.in_a_file)
TestFolderHoldingNothing = dead_letters(openings.in_a_folder_holding_nothing)
