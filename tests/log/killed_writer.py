"""A process that writes to a partition until it is killed, and says what it has acknowledged.

Records are numbered by a producer that does not remember what the log has: it starts with the first number that it was
not told to be acknowledged, as a client does after a restart. Each number is written to a pipe once it is safe.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.log.compacting import cleaning, compaction
from penstock.log.configs.topic_config import TopicConfig
from penstock.log.partition import PartitionLog
from penstock.log.segment import Resources
from tests.log.engine import NOW_MS, batch_of

KEYS = 10


def batch_size(number: int) -> int:
    """The same for the same first number, so that a batch is sent again as it was."""
    return 1 + number * 7919 % 5


def write(folder: Path, number: int, mode: str) -> None:
    settings = {"internal.segment.bytes": "3000", "index.interval.bytes": "300"}
    compact = mode == "compact"
    if compact:
        settings |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.3"}
    log, report = PartitionLog.open("topic", 0, folder, TopicConfig.parse(settings), Resources())
    assert not report.damaged
    for turn in range(1_000_000):
        count = batch_size(number)
        pairs = [(b"%d" % (each % KEYS), b"%d" % each) for each in range(number, number + count)]
        batch = batch_of(pairs, producer_id=1, sequence=number, codec=number % 5)
        log.append(batch, NOW_MS)
        log.write()
        if turn % 7 == 0:
            log.sync()
        log.publish(log.end_offset)
        number += count
        print(number, flush=True)
        if turn % 50 == 49:
            log.checkpoint()
        if mode == "delete" and turn % 20 == 19:
            log.delete_records(max(log.log_start_offset, log.end_offset - 100))
        if compact and turn % 20 == 19:
            plan = compaction.plan(log, NOW_MS)
            if plan is not None:
                compaction.install(log, cleaning.run(plan))


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
