"""A member that was fenced while its group still assigns it the partition goes on with it."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import penstock
from penstock.app import App
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.model import Checkpoint, CheckpointKey
from tests.clients.waiting import eventually

KEY = CheckpointKey("counting", "numbers", 0)


def test_a_partition_that_a_late_member_has_claimed_is_claimed_again(tmp_path: Path) -> None:
    """The late one was assigned the partition earlier, and hung; the group has gone on without it."""
    url, database = f"log:{tmp_path / 'data'}", tmp_path / "checkpoints.db"
    handled: list[bytes] = []
    sent: set[bytes] = set()
    app = App(url, group="counting")

    @app.handle("numbers", checkpoints=f"sqlite:{database}", commit_interval_s=0.1)
    def count(value: bytes) -> None:
        handled.append(value)

    with penstock.connect(url) as stream, contextlib.closing(SqliteCheckpoints(database)) as store:
        stream.create_topic("numbers")
        running = threading.Thread(target=app.run)
        running.start()
        try:
            for number in range(3):
                if number > 0:
                    (lease,) = store.leases(KEY.group, KEY.lease_name)
                    late = store.claim(KEY.group, KEY.lease_name, "late", lease)
                    assert late is not None
                    store.release(late)
                sent.add(b"%d" % number)
                stream.send("numbers", str(number)).result(30)
                eventually(f"record {number} is handled", lambda: sent <= set(handled), 60)
            eventually("all is saved", lambda: (store.load(KEY) or Checkpoint(0, 0)).start == 3, 60)
        finally:
            app.stop()
            running.join(60)
    assert not running.is_alive()
    assert set(handled) == sent
