"""Every block of code in the README and on the pages of the documentation works, or says why it is not run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests import real_parts
from tests.docs.blocks import DATA, PLAIN, PYTHON, ROOT, SHELL, Page, pages
from tests.docs.page_run import TIMEOUT_S, check_data
from tests.docs.servers import servers_of

PAGES: Final = {page.name: page for page in pages()}
RUN_HERE: Final = [page for page in PAGES.values() if page.is_run and not page.needs_spark]
SAYS: Final = {
    "docs/consuming.md": {
        "billed": 100,
        "shipped": 2,
        "audited": 100,
        "checked async": 100,
        "booked": 100,
        "mailed": 3,
        "succeeded attempt 1": 1,
    }
}
"""How often the programs of a page say what, where that they come to their end says too little."""


@pytest.mark.parametrize("page", RUN_HERE, ids=[page.name for page in RUN_HERE])
def test_what_a_page_shows_works(page: Page, tmp_path: Path) -> None:
    if any(block.is_run and "kcat" in block.text for block in page.blocks):
        real_parts.kcat()
    folder = tmp_path / "reader"
    folder.mkdir()
    with servers_of(page, tmp_path / "servers") as replace:
        done = subprocess.run(
            [sys.executable, "-m", "tests.docs.run_page", page.name, str(folder), json.dumps(replace)],
            cwd=ROOT,
            # Threads that print into one pipe can spoil each other's text in older Pythons, unless it is unbuffered.
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            capture_output=True,
            text=True,
            errors="replace",  # librdkafka logs whatever bytes it has in hand
            timeout=2 * TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, f"{done.stderr}\nIt had said:\n{done.stdout}"
    expected = SAYS.get(page.name, {})
    assert {words: done.stdout.count(words) for words in expected} == expected, done.stdout


def test_pages_of_which_more_is_known_are_run() -> None:
    assert SAYS.keys() <= {page.name for page in RUN_HERE}


@pytest.mark.parametrize("page", PAGES.values(), ids=list(PAGES))
def test_every_block_says_what_it_is(page: Page) -> None:
    known = (*PYTHON, *SHELL, *DATA, *PLAIN)
    for block in page.blocks:
        assert block.why_not or block.language in known, (
            f"{block.place} is {block.language or 'without a language'!r}: name one of {', '.join(known)}, or say "
            "before it why it is not run: <!-- not run: ... -->"
        )


@pytest.mark.parametrize("page", PAGES.values(), ids=list(PAGES))
def test_data_that_a_page_shows_is_such_data(page: Page) -> None:
    for block in page.blocks:
        if block.language in DATA and not block.why_not:
            check_data(block)


@pytest.mark.parametrize("page", PAGES.values(), ids=list(PAGES))
def test_a_file_that_a_page_shows_is_run(page: Page) -> None:
    for number, block in enumerate(page.blocks):
        if block.is_run and block.file is not None:
            name = Path(block.file)
            users = [each.text for each in page.blocks[number + 1 :] if each.is_run]
            assert any(name.name in text or name.stem in text or "pytest" in text for text in users), (
                f"{block.place} is the file {name}, and nothing behind it on the page runs it"
            )


@pytest.mark.parametrize("page", PAGES.values(), ids=list(PAGES))
def test_a_part_of_a_file_stands_in_it(page: Page) -> None:
    for block in page.blocks:
        if block.part_of:
            file = [line.strip() for line in (ROOT / block.part_of).read_text("utf-8").splitlines()]
            shown = [line.strip() for line in block.text.splitlines() if line.strip()]
            missing = [line for line in shown if line not in file]
            assert not missing, f"{block.place} is not what {block.part_of} has: {missing}"


def test_what_is_not_run_says_why(record_property: Callable[[str, object], None]) -> None:
    for page in PAGES.values():
        for block in page.blocks:
            if block.why_not and block.language in (*PYTHON, *SHELL):
                print(f"not run: {block.place}: {block.why_not}")
                record_property(block.place, block.why_not)
                assert len(block.why_not.split()) >= 3, f"{block.place}: {block.why_not!r} is no reason"
