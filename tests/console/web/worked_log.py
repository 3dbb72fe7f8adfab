"""A log on which consumers of the library have worked, failed and given up, and a console on it, started once.

Everything here is made by the parts themselves, run to their end, but for one checkpoint in the middle of its work:
what a consumer has in flight at one moment depends on the moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import penstock as ps
from penstock.checkpoints.opening import open_store
from penstock.model import Change, Checkpoint, CheckpointKey, HistoryEntry, Status
from penstock.model.checkpoint import Failing
from penstock.streams import connect
from tests.console.letters_of_tests import put_letters
from tests.console.web.console_process import ConsoleProcess

EVIL: Final = "<img src=x onerror=\"document.body.dataset.evil='1'\">"
EVIL_GROUP: Final = f"a/b {EVIL}"
CUPS: Final = 60
CAKES: Final = 12
"""Every fifth order is for cake, which has no price, and is given up."""
STUCK_AT_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Worked:
    """The log, and the console that looks at it."""

    url: str
    folder: Path
    console: ConsoleProcess

    @property
    def address(self) -> str:
        return self.console.address

    @property
    def bin(self) -> str:
        """A place of dead letters in a file of its own, for tests that redrive and discard."""
        return f"sqlite:{self.folder / 'bin.db'}"

    @property
    def spare(self) -> str:
        """Another one, with 6 letters, for a test that discards all that match."""
        return f"sqlite:{self.folder / 'spare.db'}"


@pytest.fixture(scope="session")
def worked(filled_log: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    """Topic `tea` (2 partitions); groups `house` and `bin` of the library, which gave up 12 records each, to `tea.dlq`
    and to a file; group `stuck` in the middle of its work; group `report`, which has offsets only; pipeline `usage`."""
    folder = tmp_path_factory.mktemp("worked")
    bin_letters = f"sqlite:{folder / 'bin.db'}"
    checkpoints = f"sqlite:{folder / 'checkpoints.db'}"
    with connect(filled_log) as stream:
        stream.create_topic("tea", 2)
        for number in range(CUPS):
            order = {"number": number, "item": "cake" if number % 5 == 0 else "tea", "note": EVIL}
            stream.send("tea", json.dumps(order), f"c-{number % 7}")
        stream.flush(30)
        stream.group_admin().move("report", {("tea", 0): 5, ("tea", 1): 5})
        stream.group_admin().move(EVIL_GROUP, {("tea", 0): 1})
    app = ps.App(filled_log, group="house", checkpoints=checkpoints)
    for group, letters in (("house", "tea.dlq"), ("bin", bin_letters)):
        retry = ps.Retry(2, first_delay_s=0)
        app.handle("tea", group=group, retry=retry, dead_letters=letters, end="latest")(_serve)
    app.run()
    spare = f"sqlite:{folder / 'spare.db'}"
    put_letters(spare, "tea", 6)
    _leave_stuck(checkpoints)
    _leave_pipeline(folder / "pipelines" / "usage")
    console = ConsoleProcess(
        folder / "console", filled_log, "--checkpoints", checkpoints, "--dead-letters", "tea.dlq",
        "--dead-letters", bin_letters, "--dead-letters", spare, "--pipelines", str(folder / "pipelines"),
    )  # fmt: skip
    with console:
        yield Worked(filled_log, folder, console)


def _serve(order: dict[str, Any]) -> None:
    if order["number"] == 0:
        raise ps.Reject("nothing comes for nothing")
    if order["item"] == "cake":
        raise KeyError(f"no price for {order['item']}: {order['note']}")


def _leave_stuck(url: str) -> None:
    """A group that has read up to 40, finished some of it, and fails at 12 again and again."""
    error = f"ConnectionError: no answer {EVIL}"
    failing = Failing(12, 3, error, STUCK_AT_MS, STUCK_AT_MS + 9_000)
    tried = [
        HistoryEntry(12, 13, Status.FAILED, attempt, error, at_ms, at_ms + 40, "host-1", "bill")
        for attempt, at_ms in enumerate(range(STUCK_AT_MS, STUCK_AT_MS + 9_000, 3_000), start=1)
    ]
    checkpoint = Checkpoint(12, 40, ((13, 30),), (failing,), 2, processed=43, delivered=29, saved_ms=STUCK_AT_MS)
    key = CheckpointKey("stuck", "tea", 0)
    store = open_store(url)
    try:
        lease = store.claim(key.group, key.lease_name, "host-1", None)
        assert lease is not None
        store.save(lease, key, Change(checkpoint, tuple(tried)))
    finally:
        store.close()


def _leave_pipeline(folder: Path) -> None:
    """What a pipeline leaves that has ended."""
    folder.mkdir(parents=True)
    folder.joinpath("pipeline.json").write_text(json.dumps({"format": 1, "pipeline": "usage"}))
    query = {
        "query": "spend", "state": "failed", "batch_id": 41, "rows_read": 12_345, "rows_written": 12_000,
        "rows_late": 17, "rows_refused": 29, "restarts": 2, "lag": 350, "batch_s": 0.3, "rows_per_s": 512.0,
        "state_rows": 4_000, "watermark": "2023-11-14T22:13:20.000Z", "error": f"QueryError: {EVIL}", "sources": [],
        "at": STUCK_AT_MS / 1000, "rows_bad": 1_108, "rows_dropped": 6, "batch_rows_bad": 21,
        "bad_rows": {f"function {EVIL}": 1_108, "expectation positive": 6},
        "batch_bad_rows": {f"function {EVIL}": 21},
    }  # fmt: skip
    folder.joinpath("progress.json").write_text(json.dumps({"pipeline": "usage", "queries": [query]}))
    lines = [
        {"at": STUCK_AT_MS / 1000, "query": "spend", "what": "started", "error": None, "batch_id": -1},
        {
            "at": STUCK_AT_MS / 1000 + 60,
            "query": "spend",
            "what": "failed",
            "error": f"QueryError: {EVIL}",
            "batch_id": 41,
        },
    ]
    folder.joinpath("happenings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
