"""Two looks at a stream, for `penstock alerts check`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.output import say
from penstock.cli.stream import open_stream
from penstock.errors import BrokerUnavailableError

if TYPE_CHECKING:
    from penstock.observe.alerts import AlertState
    from penstock.observe.alerts.book import BookFile
    from penstock.observe.facts import Snapshot


def look_and_check(
    file: BookFile, url: str, apart_s: float, dead_letters: Sequence[str], pipelines: Path | None
) -> list[AlertState]:
    """What is wrong by the rules of the file. A stream that does not answer is wrong, and no error."""
    from penstock.observe.alerts.checking import check, read_memory, write_memory

    rules = file.read().rules
    path = file.path.with_name(f"{file.path.stem}.check.json")
    memory, unreadable = read_memory(path)
    found, memory = check(rules, list(_looks(url, apart_s, dead_letters, pipelines)), memory)
    for problem in (unreadable, write_memory(path, memory)):
        if problem is not None:
            say(problem)
    return found


def _looks(url: str, apart_s: float, dead_letters: Sequence[str], pipelines: Path | None) -> Iterator[Snapshot]:
    from penstock.observe.looking import Looker

    try:
        with (
            open_stream(url) as stream,
            contextlib.closing(Looker(stream, dead_letters=dead_letters, pipelines=pipelines)) as looker,
        ):
            yield looker.look()
            time.sleep(apart_s)
            yield looker.look()
    except BrokerUnavailableError as error:
        with contextlib.closing(Looker(None, dead_letters=dead_letters, pipelines=pipelines)) as looker:
            yield looker.failed(str(error))
