"""Writers that kill themselves just before one of their requests, each forked off a process that has boto3 loaded.

    python dying_writer.py s3        # then on stdin, one line each: GROUP SEED SAVES DIE_AT

Each writer says on stdout the number of every change that was saved, and `end`, followed by how many requests that
write it has sent since it began to save, when it came that far. A line `dead` follows when it is gone.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from penstock.checkpoints.objects import store as _store
from penstock.model import CheckpointKey
from tests.checkpoints.aws_wire import Wire, make_client
from tests.checkpoints.changes import nth_change
from tests.checkpoints.small_objects import open_small


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def write_until_death(service: str, client: Any, group: str, seed: int, saves: int, die_at: int) -> None:
    wire = Wire(client)
    store = open_small(service, client)
    key = CheckpointKey(group, "topic", 0)

    def die(number: int) -> None:
        if number == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    _store.AT_ONCE = 3  # so that parts are removed while it writes
    wire.arm(before=die)
    lease = store.claim(group, key.lease_name, "writer", None)
    assert lease is not None
    for number in range(1, saves + 1):
        store.save(lease, key, nth_change(seed, number))
        say(str(number))
        lease = store.renew(lease)
    store.close()
    say(f"end {wire.writes}")


def main() -> None:
    (service,) = sys.argv[1:]
    client = make_client(service)  # has no connections before it is used, so every writer may have it
    for line in sys.stdin:
        group, *numbers = line.split()
        child = os.fork()
        if child == 0:
            seed, saves, die_at = map(int, numbers)
            write_until_death(service, client, group, seed, saves, die_at)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        say("dead" if code in (0, -signal.SIGKILL) else f"failed with {code}")


if __name__ == "__main__":
    main()
