"""The README leads somewhere. What it shows is run with the pages of the documentation, by tests/docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.blocks import PYTHON, SHELL, page_of

ROOT: Final = Path(__file__).parents[1]
README: Final = (ROOT / "README.md").read_text("utf-8")


def test_it_shows_programs_and_commands_that_are_run() -> None:
    run = {block.language for block in page_of("README.md", README).blocks if block.is_run}
    assert run & set(PYTHON)
    assert run & set(SHELL)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)\)", README))))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
