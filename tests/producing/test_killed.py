"""kill -9 of a producer with a spool, at every named step and at random: nothing lost, nothing twice, in order."""

from __future__ import annotations

import random
from pathlib import Path

import penstock
from tests.clients.names import fresh
from tests.producing.killed_producer import STEPS
from tests.producing.killing import arrived, check_exactly_once, factory
from tests.prove.deaths import KILLED
from tests.seeds import seed_of
from tests.servers import Server

RECORDS = 120
RANDOM_KILLS = 25


def test_a_producer_killed_at_any_step_delivers_everything_once_and_in_order(
    url: str, stream: penstock.Connection, tmp_path: Path
) -> None:
    topics = [fresh(), fresh()]
    for topic in topics:
        stream.create_topic(topic, 1)
    with factory(url, tmp_path, topics) as made:
        reached = set()
        for nth in (1, 5):
            for step in STEPS:
                code = made.run(RECORDS, step=step, nth=nth)
                assert code in (0, KILLED), f"{step}: {made.output.read_text(errors='replace')[-4000:]}"
                if code == KILLED:
                    reached.add(step)
        made.drain()
        assert reached == set(STEPS), "some steps were never reached"
        check_exactly_once(made, arrived(stream, topics))


def test_on_apache_kafka_a_producer_killed_at_any_step_delivers_everything_once_too(
    apache_kafka: Server, tmp_path: Path
) -> None:
    topics = [fresh(), fresh()]
    url = f"kafka://{apache_kafka.bootstrap}"
    with penstock.connect(url) as stream, factory(url, tmp_path, topics) as made:
        for topic in topics:
            stream.create_topic(topic, 1)
        codes = {step: made.run(RECORDS, step=step, nth=1) for step in STEPS}
        assert set(codes.values()) == {KILLED}, codes
        made.drain()
        check_exactly_once(made, arrived(stream, topics))


def test_a_producer_killed_at_random_delivers_everything_once_and_in_order(
    url: str, stream: penstock.Connection, tmp_path: Path
) -> None:
    chance = random.Random(seed_of())
    topics = [fresh(), fresh()]
    for topic in topics:
        stream.create_topic(topic, 1)
    with factory(url, tmp_path, topics) as made:
        killed = 0
        for _ in range(RANDOM_KILLS):
            count = chance.choice((50, 500, 3_000))
            killed += made.run(count, kill_after_s=chance.uniform(0.0, 0.12)) == KILLED
        made.drain()
        assert killed, "no producer was killed"
        check_exactly_once(made, arrived(stream, topics))
