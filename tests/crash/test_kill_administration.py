"""kill -9 while topics are made, changed and removed: each is there or not, never half, and stays what was answered."""

from __future__ import annotations

import random
from pathlib import Path

from tests.clients import wire
from tests.crash.killing import kill_again_and_again
from tests.crash.topic_churn import TopicChurn
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock

KILLS = 6
SOAK_KILLS = 100


def test_a_topic_is_there_or_not_and_never_half(tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    kills = times(KILLS, SOAK_KILLS)
    with Penstock(tmp_path) as server:
        churn = TopicChurn(server, rng.getrandbits(32))
        churn.start()
        kill_again_and_again(server, rng, [churn], kills, longest_pause_s=0.1)
        churn.finish()
        assert churn.reconnects > kills
        server.kill()
        server.start()
        with wire.Connection(server) as connection:
            churn.check_all(connection)
        assert server.terminate() == 0
        leftovers = [path.name for path in server.data.rglob("*") if "~" in path.name or path.name.endswith(".deleted")]
        assert not leftovers, "what was left half done has not been cleaned up"
