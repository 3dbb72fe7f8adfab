"""Topics as streams of JetStream: their names, subjects, partitions and what they hold.

Topic `orders` is the stream `orders` with the subject `orders`. With several partitions, it is the streams `orders`,
`orders@1`, `orders@2`, ... with the subjects `orders.0`, `orders.1`, `orders.2`, and their number is in the metadata of
the first. A stream for each partition, as records of one stream are numbered across its subjects: so pointers count
records, and it is known exactly what retention has removed. A dot in a topic is a tilde in a stream, whose name can
have no dots.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import ConfigError, PenstockError, TopicExistsError, UnknownTopicError
from penstock.model import Pointer
from penstock.streams.nats.client import NatsApiError, NatsClient, new_name
from penstock.streams.nats.settings import NatsSettings

PARTITION_MARK: Final = "@"
_DOT: Final = "~"
_COUNT: Final = "penstock-partitions"
_CREATOR: Final = "penstock-creator"
_STREAM_NOT_FOUND: Final = 10059
_NAME_IN_USE: Final = 10058
_SUBJECTS_OVERLAP: Final = 10065
_NS: Final = 1_000_000_000
_LEAST_WINDOW_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class StreamState:
    """The contents of a partition at one moment."""

    first: Pointer
    end: Pointer
    average_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The partitions of a topic."""

    subjects: tuple[str, ...]
    """Of each partition."""
    duplicates_s: float
    """For how long the server remembers the ids of messages."""


def stream_name(topic: str) -> str:
    return topic.replace(".", _DOT)


def topic_name(stream: str) -> str | None:
    """The topic of a stream; None for one that is a partition, a bucket, or has a name that no topic has."""
    if PARTITION_MARK in stream or stream.startswith(("KV_", "OBJ_")):
        return None
    return stream.replace(_DOT, ".")


class NatsTopic:
    """The streams of a topic. Its coroutines run in the client's loop."""

    def __init__(self, topic: str, client: NatsClient, settings: NatsSettings) -> None:
        self.topic = topic
        self._client = client
        self._settings = settings

    def stream(self, partition: int) -> str:
        name = stream_name(self.topic)
        return name if partition == 0 else f"{name}{PARTITION_MARK}{partition}"

    async def layout(self) -> Layout | None:
        """Partitions and settings of the topic, as the server has them; None if the topic does not exist."""
        try:
            info = await self._client.api(f"STREAM.INFO.{self.stream(0)}")
        except NatsApiError as error:
            if error.err_code == _STREAM_NOT_FOUND:
                return None
            raise
        config = info["config"]
        count = int((config.get("metadata") or {}).get(_COUNT, 1))
        duplicates_s = config.get("duplicate_window", 0) / _NS
        if count > 1:
            return Layout(tuple(f"{self.topic}.{number}" for number in range(count)), duplicates_s)
        return Layout((_one_subject(config.get("subjects") or [self.topic], self.topic),), duplicates_s)

    async def provided(self) -> Layout:
        """Like `layout`, but create the topic if it does not exist."""
        layout = await self.layout()
        if layout is not None:
            return layout
        with contextlib.suppress(TopicExistsError):  # somebody else was quicker
            await self.create(self._settings.partitions)
        return await self.layout() or Layout((self.topic,), _LEAST_WINDOW_S)

    async def create(self, partitions: int) -> None:
        """The first stream comes last: the topic is there when it is whole."""
        if await self.layout() is not None:
            raise self._exists()
        creator = new_name()
        for number in reversed(range(partitions)):
            subject = self.topic if partitions == 1 else f"{self.topic}.{number}"
            metadata = {_CREATOR: creator, **({_COUNT: str(partitions)} if partitions > 1 else {})}
            try:
                await self._client.api(f"STREAM.CREATE.{self.stream(number)}", self._config(number, subject, metadata))
            except NatsApiError as error:
                if error.err_code == _NAME_IN_USE and number == 0:
                    raise self._exists() from error
                if error.err_code == _NAME_IN_USE:
                    continue  # left behind by a creator that was killed, or being created right now
                if error.err_code == _SUBJECTS_OVERLAP:
                    raise ConfigError(
                        f"{self._client.where}: another stream takes the subject {subject!r} of topic {self.topic!r}: "
                        "choose another topic"
                    ) from error
                raise

    async def delete(self) -> None:
        layout = await self.layout()
        if layout is None:
            raise self.unknown()
        for number in reversed(
            range(len(layout.subjects))
        ):  # the first last: if this is interrupted, it can be repeated
            try:
                await self._client.api(f"STREAM.DELETE.{self.stream(number)}")
            except NatsApiError as error:
                if error.err_code != _STREAM_NOT_FOUND:
                    raise

    async def state(self, partition: int) -> StreamState:
        if partition < 0:
            raise self.unknown(partition)
        state = (await self._info(partition))["state"]
        end = int(state["last_seq"]) + 1
        first = max(1, int(state["first_seq"])) if state["messages"] else end
        return StreamState(first, end, int(state["bytes"]) // max(1, int(state["messages"])))

    async def max_age_s(self) -> float | None:
        """How long the server keeps records; None: without a limit."""
        return (await self._info(0))["config"].get("max_age", 0) / _NS or None

    async def _info(self, partition: int) -> dict[str, Any]:
        try:
            return await self._client.api(f"STREAM.INFO.{self.stream(partition)}")
        except NatsApiError as error:
            raise self.translated(error, partition) from error

    def translated(self, error: NatsApiError, partition: int) -> PenstockError:
        return self.unknown(partition) if error.err_code == _STREAM_NOT_FOUND else error

    def unknown(self, partition: int = 0) -> UnknownTopicError:
        if partition:
            return UnknownTopicError(
                f"topic {self.topic!r} in {self._client.where} has no partition {partition}, or does not exist: there "
                f"is no stream {self.stream(partition)!r}"
            )
        return UnknownTopicError(
            f"there is no topic {self.topic!r} in {self._client.where}: there is no stream {self.stream(0)!r}. It is "
            "created by the first record, or with `penstock topics create`"
        )

    def _exists(self) -> TopicExistsError:
        return TopicExistsError(f"topic {self.topic!r} exists already in {self._client.where}")

    def _config(self, number: int, subject: str, metadata: dict[str, str]) -> dict[str, Any]:
        settings = self._settings
        window_s = max(_LEAST_WINDOW_S, 2 * settings.delivery_timeout_s)
        if settings.max_age_s is not None:
            window_s = min(window_s, settings.max_age_s)  # the server refuses a longer one
        return {
            "name": self.stream(number),
            "subjects": [subject],
            "retention": "limits",
            "discard": "old",
            "storage": settings.storage,
            "num_replicas": settings.replicas,
            "max_msgs": settings.max_messages or -1,
            "max_bytes": settings.max_bytes or -1,
            "max_age": round((settings.max_age_s or 0) * _NS),
            "duplicate_window": round(window_s * _NS),
            "allow_direct": True,
            "metadata": metadata,
        }


def _one_subject(subjects: list[str], topic: str) -> str:
    """The subject to publish to: that of the topic's name, or the first. A wildcard becomes `penstock`."""
    chosen = topic if topic in subjects else subjects[0]
    return ".".join("penstock" if token in ("*", ">") else token for token in chosen.split("."))
