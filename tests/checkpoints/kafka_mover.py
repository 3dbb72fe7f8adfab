"""A program that moves records from one topic to another, exactly once; for tests to kill.

    python -m tests.checkpoints.kafka_mover BOOTSTRAP SOURCE TARGET GROUP OWNER COUNT PAUSE

It claims partition 0 of SOURCE, goes on where its checkpoint says, and moves records, a few in each transaction, until
COUNT have been moved. It says each step it comes to. At the step named PAUSE, in its third transaction, it says so and
waits for a line of input.
"""

from __future__ import annotations

import sys
from typing import Final

import penstock
from penstock.checkpoints.kafka.store import KafkaCheckpoints
from penstock.errors import FencedError
from penstock.model import Change, Checkpoint, CheckpointKey, NewRecord
from penstock.streams.kafka.stream import kafka_of

STEPS: Final = ("begun", "appended", "saved", "committed")
AT_ONCE: Final = 10
PAUSED_TRANSACTION: Final = 3


def main(bootstrap: str, source: str, target: str, group: str, owner: str, count: str, pause: str) -> None:
    key = CheckpointKey(group, source, 0)
    with penstock.connect(f"kafka://{bootstrap}") as connection:
        store = KafkaCheckpoints(connection, partitions=2)
        seen = next((lease for lease in store.leases(group) if lease.name == key.lease_name), None)
        lease = store.claim(group, key.lease_name, owner, seen)
        assert lease is not None, "somebody else was quicker"
        loaded = store.load(key)
        at = loaded.start if loaded is not None else 0
        say("claimed", str(at))
        feed = kafka_of(connection).open_topic(source).feed()
        feed.add(0, at)
        transactions = 0
        try:
            while at < int(count):
                for batch in feed.poll(AT_ONCE, 1.0):
                    transactions += 1
                    where = pause if transactions == PAUSED_TRANSACTION else ""
                    transaction = store.begin(lease)
                    reach("begun", where)
                    transaction.append(NewRecord(target, value) for value in batch.values())
                    reach("appended", where)
                    transaction.save(lease, key, Change(Checkpoint(batch.next, batch.next)))
                    reach("saved", where)
                    transaction.commit()
                    at = batch.next
                    reach("committed", where)
        except FencedError as error:
            say("fenced", str(error))
        store.close()
    say("done", str(at))


def reach(step: str, pause: str) -> None:
    say(step)
    if step == pause:
        say("paused")
        sys.stdin.readline()


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
