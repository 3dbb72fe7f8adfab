"""Drills about replicas: failover of a leader, what `acks` is worth, in-sync replicas, the high watermark."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import Final

from penstock.cluster.drills.stage import Load, Outcome, Stage

STALL_S: Final = 1.0
"""How long followers hang before their leader dies: less than what costs them their place among those in sync."""


def leader_failover(stage: Stage) -> Outcome:
    """Kill the leader of a partition while a producer writes with acks=all."""
    leader, *followers = stage.shuffled_brokers()
    topic = stage.topic("failover", [[leader, *followers]], min_insync_replicas="2")
    before = stage.partition(topic)
    with Load(stage, topic) as load:
        load.wait_for_more(400)
        stage.kill(leader)
        stage.timed("a new leader after the kill", lambda: stage.is_led_without(topic, leader))
        after = stage.partition(topic)
        stage.found("acknowledgements resume after the new leader", f"{load.wait_for_more(200):.1f} s")
        stage.start(leader)
        stage.timed("all replicas in sync again", lambda: not stage.partition(topic).out_of_sync)
    stage.found(
        "leader, and its epoch", f"{before.leader} ({before.leader_epoch}) -> {after.leader} ({after.leader_epoch})"
    )
    tally = stage.tally("acks=all, min.insync.replicas=2", load)
    return Outcome(
        why="A record with acks=all is acknowledged once every in-sync replica has it, and only one of these "
        "can become leader, so the new leader has all of them. The outage is the time until the controller "
        "misses the heartbeats of the dead broker (broker.session.timeout.ms); the producer repeats what "
        "was under way, and its sequence numbers keep that from being stored twice.",
        tallies=[tally],
        claims={
            "another in-sync replica became leader": after.leader in followers,
            "the leader epoch grew": after.leader_epoch > before.leader_epoch,
            "acknowledged lost 0": tally.lost == 0,
            "repeated 0": tally.repeated == 0,
        },
    )


def acks(stage: Stage) -> Outcome:
    """acks 0, 1 and all x min.insync.replicas 1 and 2 x one or two brokers lost."""
    leader, second, third = stage.shuffled_brokers()[:3]
    outcome = Outcome(
        why="With acks=0 and acks=1 the producer hears nothing, or only from the leader, so whatever the "
        "followers had not fetched when it died is lost although it was acknowledged. acks=all waits for "
        "every in-sync replica; with two of three brokers gone, no controller has a majority, so nothing is "
        "acknowledged until one is back, and nothing is lost either.",
    )
    for lost in (1, 2):
        cases = [(kind, in_sync) for kind in ("0", "1", "all") for in_sync in ("1", "2")]
        topics = {
            case: stage.topic(
                f"acks-{case[0]}-{case[1]}-{lost}", [[leader, second, third]], min_insync_replicas=case[1]
            )
            for case in cases
        }
        with ExitStack() as stack:
            loads = {case: stack.enter_context(Load(stage, topics[case], acks=case[0], rate=150)) for case in cases}
            followers = [second, third]
            if lost == 2:
                stage.kill(second)
                followers = [third]
                for topic in topics.values():
                    stage.wait("the killed follower is out of sync", partial(_is_out, stage, topic, second))
            for load in loads.values():
                load.wait_for_more(50)
            # Replication stalls: what the leader alone has now is what differs between the kinds of acknowledgement.
            for follower in followers:
                stage.pause(follower)
            time.sleep(STALL_S)
            stage.kill(leader)
            for follower in followers:
                stage.resume(follower)
            began_s = time.monotonic()
            if lost == 2:
                time.sleep(STALL_S)
                stage.start(second)
            for topic in topics.values():
                stage.wait("there are new leaders", partial(stage.is_led_without, topic, leader))
            stage.found(f"{lost} lost: new leaders after", f"{time.monotonic() - began_s:.1f} s")
            for load in loads.values():
                load.wait_for_more(50)
        stage.make_whole()
        for kind, in_sync in cases:
            tally = stage.tally(f"acks={kind}, min.insync.replicas={in_sync}, {lost} lost", loads[kind, in_sync])
            outcome.tallies.append(tally)
            if kind == "all":
                outcome.claims[f"{tally.case}: acknowledged lost 0"] = tally.lost == 0
                outcome.claims[f"{tally.case}: repeated 0"] = tally.repeated == 0
            else:
                outcome.claims[f"{tally.case}: acknowledged records are lost"] = tally.lost > 0
    return outcome


def in_sync_replicas(stage: Stage) -> Outcome:
    """A follower crashes, then another one hangs: the in-sync replicas shrink, and grow again."""
    leader, crashing, hanging = stage.shuffled_brokers()[:3]
    topic = stage.topic("in-sync", [[leader, crashing, hanging]], min_insync_replicas="2")
    shrunk = {}
    with Load(stage, topic) as load:
        for number, what in ((crashing, "crashed"), (hanging, "hanging")):
            if what == "crashed":
                stage.kill(number)
            else:
                stage.pause(number)
            stage.timed(f"the {what} follower leaves the in-sync replicas", partial(_is_out, stage, topic, number))
            shrunk[what] = stage.partition(topic).in_sync
            load.wait_for_more(200)
            if what == "crashed":
                stage.start(number)
            else:
                stage.resume(number)
            stage.timed(f"the {what} follower is back in sync", partial(stage.is_in_sync, topic, number))
    whole = stage.partition(topic).in_sync
    tally = stage.tally("acks=all, min.insync.replicas=2", load)
    for what, in_sync in shrunk.items():
        stage.found(f"in sync while one was {what}", ", ".join(map(str, in_sync)))
    return Outcome(
        why="A follower that has not caught up for replica.lag.time.max.ms, or whose broker misses its "
        "heartbeats for broker.session.timeout.ms, is removed from the in-sync replicas, so that acks=all "
        "need not wait for it: that is the longest wait of the producer. It is added again once it has "
        "fetched everything up to the leader's end.",
        tallies=[tally],
        claims={
            "the in-sync replicas shrank to two": all(len(in_sync) == 2 for in_sync in shrunk.values()),
            "they grew to three again": len(whole) == 3,
            "no record was refused": tally.refused == 0,
            "acknowledged lost 0": tally.lost == 0,
            "repeated 0": tally.repeated == 0,
        },
    )


def high_watermark(stage: Stage) -> Outcome:
    """Followers hang while the leader accepts records with acks=1: consumers must not see these yet."""
    leader, *followers = stage.shuffled_brokers()[:3]
    topic = stage.topic("watermark", [[leader, *followers]], min_insync_replicas="1")
    with Load(stage, topic, acks="1") as load:
        load.wait_for_more(100)
        for follower in followers:
            stage.pause(follower)
        time.sleep(STALL_S)
        load.wait_for_more(200)
        visible_end = stage.end_offsets(topic)[0]
        seen = [message.offset() or 0 for message in stage.read(topic)]
        end = load.highest_offset + 1
        for follower in followers:
            stage.resume(follower)
        stage.timed("the high watermark passes that end", lambda: stage.end_offsets(topic)[0] >= end)
    later = [message.offset() or 0 for message in stage.read(topic)]
    stage.found("end of the leader's log while followers hang", end)
    stage.found("high watermark at that time", visible_end)
    stage.found("highest offset that a consumer saw", max(seen, default=-1))
    tally = stage.tally("acks=1, min.insync.replicas=1", load)
    return Outcome(
        why="The high watermark is the offset up to which all in-sync replicas have the log, and consumers are "
        "given nothing beyond it: what the leader alone has may still be lost, and a record that was read "
        "must not vanish. It moved on as soon as the followers fetched again.",
        tallies=[tally],
        claims={
            "the leader acknowledged records beyond the high watermark": end > visible_end,
            "no consumer saw one of them": max(seen, default=-1) < visible_end,
            "all of them were visible afterwards": max(later, default=-1) >= end - 1,
            "acknowledged lost 0": tally.lost == 0,
        },
    )


def _is_out(stage: Stage, topic: str, number: int) -> bool:
    return not stage.is_in_sync(topic, number)
