"""Drills about elections: of an unclean leader, of the controller, of the preferred leader."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import Final

from kio.schema.create_topics.v7 import request as creation
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from penstock.cluster.drills.stage import Load, Outcome, Stage, Tally
from penstock.cluster.requests import Exchange
from penstock.errors import BrokerUnavailableError

OBSERVED_S: Final = 3.0
"""How long a partition is watched that must not get a leader."""
ANSWER_TIMEOUT_S: Final = 30.0


def unclean_election(stage: Stage) -> Outcome:
    """The last in-sync replica dies, and only one is left that is behind: may it lead?"""
    leader, behind, _ = stage.shuffled_brokers()[:3]
    topics = {
        setting: stage.topic(
            f"unclean-{setting}",
            [[leader, behind]],
            min_insync_replicas="1",
            unclean_leader_election_enable=setting,
        )
        for setting in ("false", "true")
    }
    loads = {setting: Load(stage, topic) for setting, topic in topics.items()}
    for load in loads.values():
        load.start()
    stage.kill(behind)
    for topic in topics.values():
        stage.wait("the leader is the only replica in sync", partial(_is_alone, stage, topic, leader))
    for load in loads.values():
        load.wait_for_more(300)  # acknowledged by all that are in sync, which is the leader alone
        load.finish()
    stage.kill(leader)
    began_s = time.monotonic()
    stage.start(behind)
    stage.wait("the replica that is behind leads, where it may", lambda: stage.leaders(topics["true"]) == [behind])
    stage.found("true: the replica that is behind leads after", f"{time.monotonic() - began_s:.1f} s")
    watched_s = time.monotonic()
    stayed_offline = True
    while time.monotonic() - watched_s < OBSERVED_S:
        stayed_offline &= stage.leaders(topics["false"]) in ([None], [leader])
    stage.found(
        "false: leader while the last in-sync replica is down", "none" if stayed_offline else "one that is behind"
    )
    stage.start(leader)
    stage.timed("false: the returned broker leads again", lambda: stage.leaders(topics["false"]) == [leader])
    stage.make_whole()
    tallies = {setting: stage.tally(f"unclean.leader.election.enable={setting}", loads[setting]) for setting in topics}
    return Outcome(
        why="A replica that fell out of sync lacks records that were acknowledged without it; if it leads, they "
        "are lost, and the former leader truncates its log to agree. With unclean elections off, which is "
        "the default, the partition waits without a leader instead until a replica returns that has "
        "everything.",
        tallies=list(tallies.values()),
        claims={
            "off: the partition had no leader meanwhile": stayed_offline,
            "off: acknowledged lost 0": tallies["false"].lost == 0,
            "on: acknowledged records are lost": tallies["true"].lost > 0,
        },
    )


def _is_alone(stage: Stage, topic: str, leader: int) -> bool:
    return stage.partition(topic).in_sync == (leader,)


def controller_election(stage: Stage) -> Outcome:
    """The active controller hangs, another one is elected, and the first one wakes up as a zombie."""
    stage.wait("there is a controller", lambda: stage.quorum() is not None)
    before = stage.quorum()
    assert before is not None
    zombie = before.controller
    others = [number for number in stage.cluster.numbers if number != zombie]
    topic = stage.topic("controller", [[*others, zombie]], min_insync_replicas="2")
    ghost = stage.name_of("by-the-zombie")
    broker = stage.cluster.broker(zombie)
    with Load(stage, topic) as load:
        load.wait_for_more(100)
        stage.pause(zombie)
        with Exchange(broker.host, broker.controller_port, ANSWER_TIMEOUT_S) as exchange:
            # The kernel accepts it for the process that hangs: the zombie finds it when it wakes up.
            exchange.send(_creation_of(ghost))
            stage.timed("a new controller after the old one hangs", lambda: _is_other(stage, zombie))
            after = stage.quorum()
            assert after is not None
            created = stage.name_of("by-the-new-controller")
            stage.timed("the new controller creates a topic", partial(_creates, stage, created))
            stage.resume(zombie)
            answer = _answer(exchange)
        stage.timed(
            "the zombie has copied the metadata of its successor", lambda: _has_caught_up(stage, zombie, after.epoch)
        )
        load.wait_for_more(100)
    at_end = stage.quorum()
    assert at_end is not None
    stage.found("controller, and its epoch", f"{zombie} ({before.epoch}) -> {after.controller} ({after.epoch})")
    stage.found("answer of the zombie to the same request", answer)
    tally = stage.tally("acks=all, min.insync.replicas=2", load)
    return Outcome(
        why="The controllers elect one of them with a majority of votes, and every election has a higher epoch; "
        "the zombie's change needs a majority, too, which refuses anything of an older epoch, so it was "
        "fenced and became a follower. Producers hardly noticed: they need the controller only when leaders "
        "change.",
        tallies=[tally],
        claims={
            "another broker became controller": after.controller != zombie,
            "the epoch grew": after.epoch > before.epoch,
            "the zombie's change was refused": answer != "none" and not stage.partitions(ghost),
            "the successor's change was made": bool(stage.partitions(created)),
            "the zombie did not become controller in an old epoch": at_end.epoch >= after.epoch,
            "acknowledged lost 0": tally.lost == 0,
            "repeated 0": tally.repeated == 0,
        },
    )


def _creation_of(topic: str) -> creation.CreateTopicsRequest:
    new = creation.CreatableTopic(
        name=TopicName(topic), num_partitions=i32(1), replication_factor=i16(1), assignments=(), configs=()
    )
    return creation.CreateTopicsRequest(topics=(new,))


def _creates(stage: Stage, topic: str) -> bool:
    """Whether the controller creates a topic. It refuses before it has read the metadata to its end.

    It is asked directly: brokers that pass requests on may still wait for a controller that hangs, for up to 30 s.
    """
    found = stage.quorum()
    if found is None:
        return False
    broker = stage.cluster.broker(found.controller)
    with Exchange(broker.host, broker.controller_port, ANSWER_TIMEOUT_S) as exchange:
        exchange.send(_creation_of(topic))
        return _answer(exchange) in ("none", "topic_already_exists")


def _answer(exchange: Exchange) -> str:
    """The error code of the answer to a request to create a topic."""
    try:
        answer = exchange.receive(CreateTopicsResponse)
    except BrokerUnavailableError as error:
        return str(error)
    return ", ".join(str(topic.error_code.name) for topic in answer.topics)


def _is_other(stage: Stage, former: int) -> bool:
    found = stage.quorum()
    return found is not None and found.controller != former


def _has_caught_up(stage: Stage, number: int, epoch: int) -> bool:
    found = stage.quorum()
    if found is None or found.epoch < epoch:
        return False
    return (
        found.controller == number or found.log_end_offsets.get(number, -1) >= max(found.log_end_offsets.values()) - 5
    )


def preferred_leader(stage: Stage) -> Outcome:
    """A broker that was away leads nothing, until the preferred leaders are elected."""
    numbers = stage.cluster.numbers
    placement = [numbers[step:] + numbers[:step] for step in range(len(numbers))] * 2
    topic = stage.topic("preferred", placement, min_insync_replicas="2")
    away = stage.random.choice(numbers)
    counts: dict[str, Counter[int | None]] = {"at first": Counter(stage.leaders(topic))}
    with Load(stage, topic) as load:
        stage.kill(away)
        stage.timed("other brokers lead", lambda: stage.is_led_without(topic, away))
        counts["while it is away"] = Counter(stage.leaders(topic))
        stage.start(away)
        stage.timed("its replicas are in sync", lambda: all(not each.out_of_sync for each in stage.partitions(topic)))
        counts["after its return"] = Counter(stage.leaders(topic))
        stage.timed("preferred leaders after the election", lambda: stage.has_preferred_leaders(topic))
        counts["after the election"] = Counter(stage.leaders(topic))
        load.wait_for_more(100)
    for when, count in counts.items():
        stage.found(f"leaders {when}", ", ".join(f"broker {number}: {count[number]}" for number in numbers))
    tally: Tally = stage.tally("acks=all, min.insync.replicas=2", load)
    return Outcome(
        why="Leadership moves away from a dead broker and does not come back by itself when it returns, so the "
        "others carry its load. The preferred leader is the first replica of a partition; electing it "
        "(Kafka does so every leader.imbalance.check.interval.seconds, 5 minutes) moves the leadership back "
        "without a loss, because it is in sync.",
        tallies=[tally],
        claims={
            "the broker led nothing after its return": counts["after its return"][away] == 0,
            "the election restored the first distribution": counts["after the election"] == counts["at first"],
            "acknowledged lost 0": tally.lost == 0,
            "repeated 0": tally.repeated == 0,
        },
    )
