"""Logs when records are not acknowledged, and why.

A broker whose disk is full, or whose topic has too few replicas in sync, refuses every record with a retriable error,
so librdkafka retries silently until the delivery timeout. The reason cannot be got from librdkafka, so this asks the
brokers how much room their disks have, and which replicas are in sync.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from penstock.errors import PenstockError
from penstock.streams.kafka.administration.reaching import new_admin
from penstock.streams.kafka.plain import NotKafkaError, PlainConnection
from penstock.streams.kafka.security import Security
from penstock.streams.options import Options
from penstock.streams.url import kafka_url

logger = logging.getLogger(__name__)

SILENCE_S: Final = 3.0
"""How long without any acknowledgement until it is logged."""
_AGAIN_S: Final = 15.0
_ASK_S: Final = 2.0
_FRESH_S: Final = 10.0
"""How long an answer to `why` is given again."""
_MOST_PROBLEMS: Final = 3
_FULL_PART: Final = 0.02
"""A disk is called full with less free space than this part of it, or than `_FULL_BYTES`."""
_FULL_BYTES: Final = 1 << 20


class StallWatch:
    """Watches one sender, whose delivery thread calls `look` now and then."""

    def __init__(
        self,
        bootstrap: str,
        options: Options,
        *,
        silence_s: float = SILENCE_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bootstrap = bootstrap
        self._options = options
        self._silence_s = silence_s
        self._now_s = now_s
        self._acknowledged = 0
        self._moved_s = now_s()
        self._tell_s = 0.0
        self._told = False
        self._whys: dict[str, tuple[float, str]] = {}

    def why(self, topic: str) -> str:
        """Why records for a topic are not acknowledged, as far as its replicas tell; else empty."""
        now = self._now_s()
        asked_s, why = self._whys.get(topic, (-_FRESH_S, ""))
        if now - asked_s >= _FRESH_S:
            why = "; ".join(short_of_replicas(self._bootstrap, self._options, topic))
            self._whys[topic] = now, why
        return why

    def look(self, waiting: int, acknowledged: int) -> None:
        """`waiting` records are not acknowledged now; `acknowledged` is the total so far."""
        now = self._now_s()
        if acknowledged != self._acknowledged or not waiting:
            if self._told and acknowledged != self._acknowledged:
                logger.warning("records are acknowledged again")
            self._told = False
            self._acknowledged, self._moved_s = acknowledged, now
        elif now - self._moved_s >= self._silence_s and (not self._told or now >= self._tell_s):
            logger.warning(
                "nothing was acknowledged for %.0f s; %d records are being retried: %s",
                now - self._moved_s,
                waiting,
                why_silent(self._bootstrap, self._options),
            )
            self._told = True
            self._tell_s = self._now_s() + _AGAIN_S


def why_silent(bootstrap: str, options: Options) -> str:
    """The problems of the brokers, as far as they can be found out."""
    problems = short_of_replicas(bootstrap, options)
    brokers = kafka_url(f"kafka://{bootstrap}")
    assert brokers is not None
    for host in brokers.hosts:
        try:
            with PlainConnection(host, _ASK_S, Security(options.librdkafka)) as connection:
                disks = connection.disks()
        except (OSError, NotKafkaError):
            problems.append(f"{host} does not answer")
        except PenstockError as error:
            problems.append(f"{host} cannot be asked why: {error}")
        else:
            for disk in disks:
                if disk.failed:
                    problems.append(f"{host} cannot write to {disk.folder}: the disk is failing")
                elif 0 <= disk.free_bytes < max(_FULL_BYTES, _FULL_PART * disk.total_bytes):
                    problems.append(
                        f"the disk of {host} is full: {disk.folder} has {disk.free_bytes:,} of {disk.total_bytes:,} "
                        "bytes left. Make room there"
                    )
    return "; ".join(problems) or f"{bootstrap} answers, but stores nothing: see the broker's log"


def short_of_replicas(bootstrap: str, options: Options, topic: str | None = None) -> list[str]:
    """Why topics, or one of them, refuse records with acks=all: no leader, or too few replicas in sync. At most a few.

    Empty if there are none, or if the brokers do not say.
    """
    found: list[str] = []
    try:
        admin = new_admin(bootstrap, options)
        topics = admin.list_topics(timeout=_ASK_S).topics
        short = {
            name: partitions
            for name, about in topics.items()
            if topic in (None, name)
            and (partitions := [each for each in about.partitions.values() if len(each.isrs) < len(each.replicas)])
        }
        for name, partitions in list(short.items())[:_MOST_PROBLEMS]:
            resource = ConfigResource(ResourceType.TOPIC, name)
            settings = admin.describe_configs([resource])[resource].result(_ASK_S)
            least = int(settings["min.insync.replicas"].value)
            for each in partitions:
                missing = ", ".join(map(str, sorted(set(each.replicas) - set(each.isrs))))
                if each.leader < 0:
                    found.append(
                        f"partition {each.id} of topic {name!r} has no leader: start the brokers of its replicas, "
                        f"{', '.join(map(str, each.replicas))}"
                    )
                elif len(each.isrs) < min(least, len(each.replicas)):
                    found.append(
                        f"partition {each.id} of topic {name!r} has {len(each.isrs)} of {len(each.replicas)} replicas "
                        f"in sync, and min.insync.replicas={least}: start broker {missing}, or accept records with "
                        f"fewer copies: penstock topics alter {name} --config min.insync.replicas={len(each.isrs)}"
                    )
    except (KafkaException, PenstockError, TimeoutError, KeyError, ValueError) as error:
        logger.debug("the replicas of %s cannot be looked up: %s", bootstrap, error)
    more = len(found) - _MOST_PROBLEMS
    return [*found[:_MOST_PROBLEMS], f"and {more} more partitions"] if more > 0 else found
