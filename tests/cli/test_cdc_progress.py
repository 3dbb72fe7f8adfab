"""What `penstock cdc` shows on a terminal while the snapshot is read."""

from __future__ import annotations

import io
import re
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli.commands import cdc
from penstock.tables import CaptureProgress
from penstock.tables.cdc.source import TableProgress
from tests.tables.captured import wait_until


class Terminal(io.StringIO):
    """What a terminal was sent."""

    def isatty(self) -> bool:
        return True

    def shows(self, pattern: str) -> bool:
        return re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())) is not None


def test_each_table_has_a_bar_until_all_are_read_and_then_a_line_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(cdc, "_SHOWN_EVERY_S", 0.02)
    progress = CaptureProgress(guarantee="exactly-once", phase="snapshot")
    progress.tables["public.users"] = TableProgress("public.users", rows=2_000, total=8_000)
    progress.tables["public.orders"] = TableProgress("public.orders")
    capture: Any = SimpleNamespace(progress=progress, source_url="postgresql://db/shop")
    ended = threading.Event()
    shower = threading.Thread(target=cdc._show, args=(capture, "log:./data", ended))
    shower.start()
    try:
        wait_until(lambda: terminal.shows(r"postgresql://db/shop to log:\./data, exactly-once"), "the first line")
        wait_until(lambda: terminal.shows(r"public\.users +\S+ +2000/8000"), "the bar of one table")
        wait_until(lambda: terminal.shows(r"public\.orders +\S+ +0/\?"), "of how many is unknown")
        progress.tables["public.users"].rows = 9_000
        wait_until(lambda: terminal.shows(r"public\.users +\S+ +9000/9000"), "there are more than the estimate")
        progress.tables["public.users"].is_done = True
        progress.tables["public.orders"].rows, progress.tables["public.orders"].is_done = 5, True
        wait_until(lambda: terminal.shows(r"public\.orders +\S+ +5/5"), "the other one is read")
        progress.phase, progress.changes = "streaming", 7
        wait_until(lambda: terminal.shows("streaming, 9,005 rows read, 7 changes"), "the line of the changes")
    finally:
        ended.set()
        shower.join()
    assert terminal.getvalue().endswith("\r\x1b[J"), "nothing is left on the line"
