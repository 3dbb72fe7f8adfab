"""The report: a page, and a picture where matplotlib is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from penstock.cli.demo.outcome import Outcome
from penstock.cli.demo.page import page_of
from penstock.errors import PenstockError

PAGE: Final = "report.html"
PICTURE: Final = "report.png"


def check_folder(folder: Path) -> None:
    """PenstockError, before anything is done, when a report could not be written there. Nothing is made yet."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise PenstockError(f"the report cannot be written to {folder}: choose another folder with --report")


def write_report(outcome: Outcome) -> list[Path]:
    """Write it into the folder that was chosen, over one that is there. The files, as they were written."""
    folder = outcome.settings.report
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / PAGE]
        files[0].write_text(page_of(outcome), "utf-8")
        if outcome.parts.picture:
            from penstock.cli.demo.picture import draw

            files.append(folder / PICTURE)
            draw(outcome, files[-1])
    except OSError as error:
        raise PenstockError(
            f"the report cannot be written to {folder}: {error.strerror}; choose another folder with --report"
        ) from error
    return files
