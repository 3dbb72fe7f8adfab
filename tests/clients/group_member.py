"""A member of a consumer group, run by the test step by step, that remembers what happened to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.clients import confluent
from tests.clients.confluent import Received, received_from
from tests.clients.waiting import eventually
from tests.servers import Server


class Member:
    def __init__(self, server: Server, group: str, topic: str, settings: Mapping[str, Any] | None = None) -> None:
        self.received: list[Received] = []
        self.errors: list[KafkaError] = []
        self.given: list[set[int]] = []
        """The partitions of each assignment, as the callback got them."""
        self.taken: list[set[int]] = []
        self.consumer = confluent.consumer(server, group, settings)
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.given.append({place.partition for place in partitions})

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.taken.append({place.partition for place in partitions})

    @property
    def partitions(self) -> set[int]:
        return {place.partition for place in self.consumer.assignment()}

    def step(self) -> None:
        """Serve the group once: what has come in is kept, callbacks are called."""
        for message in self.consumer.consume(100, timeout=0.02):
            error = message.error()
            if error is not None:
                self.errors.append(error)
            else:
                self.received.append(received_from(message))

    def leave(self) -> None:
        self.consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


def step_until(what: str, members: list[Member], condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Serve all the members, in turn, until the condition holds."""

    def holds() -> bool:
        for member in members:
            member.step()
        return bool(condition())

    eventually(what, holds, timeout_s)
