"""What happens to a page before mkdocs builds it: generated tables, commands, errors and pictures take their places.

mkdocs loads this file by its path (see `hooks:` in mkdocs.yml), so the checkout is put on the path first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tools import docs_commands, docs_errors, docs_pictures, docs_tables  # noqa: E402


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    for step in (docs_tables, docs_commands, docs_errors, docs_pictures):
        markdown = step.on_page_markdown(markdown, page=page)
    return markdown
