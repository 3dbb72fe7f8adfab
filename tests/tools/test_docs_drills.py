"""The outputs of drills in the documentation are replaced by those of a new run, and nothing else is."""

from __future__ import annotations

import pytest

from penstock.cluster.drills import DRILLS
from tools.docs_drills import PAGE, with_output

TOLD = "case  sent\nx       12\n\nclaim\nlost 0  ok\n\nBecause of this.\nAnd that.\n"


def block(name: str, text: str) -> str:
    return f"```text\n$ penstock cluster drill {name} --seed 1\n{text}\n```\n"


def test_the_block_of_the_drill_gets_the_tables_and_the_explanation_below_it_stays() -> None:
    page = f"a\n{block('acks', 'old')}\nWhy.\n\n{block('acks-too', 'other')}"
    new = f"a\n{block('acks', TOLD.partition(chr(10) * 2 + 'Because')[0])}\nWhy.\n\n{block('acks-too', 'other')}"
    assert with_output(page, "acks", TOLD) == new


def test_the_page_has_a_block_for_each_drill() -> None:
    page = PAGE.read_text("utf-8")
    for name in DRILLS:
        assert "lost 0  ok" in with_output(page, name, TOLD)


def test_a_page_without_the_block_is_refused() -> None:
    with pytest.raises(SystemExit, match="0 blocks"):
        with_output("nothing", "acks", TOLD)
