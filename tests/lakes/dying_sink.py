"""A sink in a process of its own, which kills itself where it is told.

    python -m tests.lakes.dying_sink '{"stream": ..., "uri": ..., "key": "id", "step": "after the commit", "count": 2}'

Without a step, it reads what exists now and ends with exit code 0. A row with a number that is divisible by
`DEAD_EVERY` is not JSON; from the number `NEW_FROM` on, rows have a new column.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, Final

from penstock.lakes import Compaction, LakeSink, LakeTable
from penstock.lakes.dead_rows import DeadRowsTable
from penstock.lakes.writing import OpenTable

TOPIC: Final = "orders"
DEAD_EVERY: Final = 17
NEW_FROM: Final = 500
STEPS: Final = (
    "after dead rows",
    "after columns",
    "before the commit",
    "inside the commit",
    "after the commit",
    "after compaction",
)


def value_of(number: int) -> bytes:
    if number % DEAD_EVERY == 0:
        return f"number {number}".encode()
    row: dict[str, Any] = {"id": number, "name": f"name {number}"}
    if number >= NEW_FROM:
        row["new"] = number * 2
    return json.dumps(row).encode()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(told: dict[str, Any]) -> None:
    table = LakeTable(told["uri"], key=told.get("key") or ())
    left = [told.get("count", 1)]

    def at(step: str) -> None:
        if told.get("step") != step:
            return
        left[0] -= 1
        if not left[0]:
            die()

    def stepping(owner: Any, method: str, *, before: str = "", after: str = "") -> None:
        real = getattr(owner, method)

        def call(self: Any, *given: Any, **named: Any) -> Any:
            is_main = not isinstance(self, OpenTable) or self.table.uri == table.uri
            if is_main:
                at(before)
            outcome = real(self, *given, **named)
            if is_main:
                at(after)
            return outcome

        setattr(owner, method, call)

    stepping(DeadRowsTable, "add", after="after dead rows")
    stepping(OpenTable, "evolve", after="after columns")
    stepping(OpenTable, "commit", before="before the commit", after="after the commit")
    stepping(OpenTable, "compact", after="after compaction")
    if table.is_delta:
        # The commit is a file in _delta_log: files of data are written, and the next look is after it exists.
        from penstock.lakes.delta import DeltaFormat

        stepping(DeltaFormat, "write", after="inside the commit")
    else:
        from pyiceberg.table import Table

        stepping(Table, "_do_commit", before="inside the commit")  # files of data and manifests are written
    sink = LakeSink(
        told["stream"],
        TOPIC,
        table,
        group="lake",
        flush_rows=40,
        compact_every=3,
        compaction=Compaction(small_files=3),
        session_timeout_s=2,
    )
    print("ready", flush=True)
    sink.run(end="latest")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
