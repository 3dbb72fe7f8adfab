"""Count the uses of each system, with a worker that is killed in the middle: every use is counted once.

    python examples/usage.py [URL]

The worker keeps its counts in a Counter. With each checkpoint they are saved as a snapshot, and the next owner of the
partition starts with the snapshot and the records after it. So no use is counted twice or lost, although some records
are handled again.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter

import penstock as ps

USES = 3_000
SYSTEMS = ("android", "ios", "web", "terminal")


def work(url: str) -> None:
    """The worker process, which prints its progress."""
    counts: dict[int, Counter[str]] = {}
    app = ps.App(url, group="usage")

    def snapshot(partition: int) -> dict[str, int]:
        return dict(counts[partition])

    def restore(partition: int, saved: dict[str, int] | None) -> None:
        counts[partition] = Counter(saved or {})
        print("begins with", counts[partition].total(), flush=True)

    @app.handle(
        "uses", snapshot=snapshot, restore=restore, end="latest", chunk=50, commit_interval_s=0.05, session_timeout_s=6
    )
    def count(system: str, record: ps.Record) -> None:
        counts[record.partition][system] += 1
        time.sleep(0.0003)
        if record.offset % 500 == 0:
            print("has counted", counts[record.partition].total(), flush=True)

    app.run()
    print(json.dumps(sum(counts.values(), Counter())), flush=True)


def start_worker(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, "--work", url], stdout=subprocess.PIPE, text=True)


def main(url: str) -> None:
    chance = random.Random(7)
    with ps.connect(url) as stream:
        for _ in range(USES):
            stream.send("uses", chance.choice(SYSTEMS))
        stream.flush(timeout_s=30)

        with start_worker(url) as worker:
            assert worker.stdout is not None
            reports = 0
            for line in worker.stdout:
                print("the first worker", line.rstrip())
                reports += line.startswith("has counted")
                if reports == 3:
                    worker.kill()
                    print("kill -9", worker.pid)

        print("the group finds out within 6 seconds that its member is dead")
        with start_worker(url) as worker:
            assert worker.stdout is not None
            *lines, last = worker.stdout.read().splitlines()
            for line in lines:
                print("the second worker", line)
        counted = Counter(json.loads(last))
        sent = Counter((record.value or b"").decode() for record in stream.read("uses"))
        print("sent:   ", dict(sorted(sent.items())))
        print("counted:", dict(sorted(counted.items())))
        assert counted == sent
        print("every use was counted once")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2])
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "log:./data")
