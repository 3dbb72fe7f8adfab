"""Pictures become part of the page when it is built, so that their lines have the colour of the text, light or dark.

`![what is to be seen](images/topic.svg)` is an image wherever the page is read as it is; in the built site the file
itself stands in its place. `docs_hooks` calls `on_page_markdown`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parents[1] / "docs"
PICTURE: Final = re.compile(r"^!\[(?P<text>[^\]]+)\]\((?P<path>[\w./-]+\.svg)\)$", re.MULTILINE)
STYLE: Final = re.compile(r"\s*<style>.*?</style>", re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    folder = posixpath.dirname(page.file.src_uri)
    return PICTURE.sub(lambda found: drawn(posixpath.join(folder, found["path"])), markdown)


def drawn(path: str) -> str:
    """The picture, in one piece of HTML. Its own style is for where it stands alone, and would be that of the page."""
    text = (DOCS / path).read_text("utf-8")
    return f'<figure class="picture">\n{STYLE.sub("", text).strip()}\n</figure>'
