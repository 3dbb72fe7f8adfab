"""`abc.Stream` on Kinesis, and `kinesis:` URLs."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import (
    ConnectionClosedError,
    InvalidTopicError,
    StreamError,
    TopicExistsError,
    UrlError,
)
from penstock.model import check_topic_name
from penstock.model.retry import Retry
from penstock.streams.adapting.aws import AwsClient, RefusedError
from penstock.streams.adapting.stream_base import checked_partitions
from penstock.streams.backend_url import parse_backend_url, settings_of
from penstock.streams.kinesis.settings import KinesisSettings
from penstock.streams.kinesis.shards import Shards
from penstock.streams.kinesis.topic import FEATURES, KinesisTopic

LONGEST_NAME: Final = 128
HTTPS_PORT: Final = 443
_POLLS: Final = Retry(None, first_delay_s=0.05, max_delay_s=2.0, jitter=0)


def open_kinesis(url: str, options: Mapping[str, Any]) -> KinesisStream:
    """`kinesis://REGION` URLs; `kinesis:` alone takes the region of the environment or profile."""
    parts = parse_backend_url(url, HTTPS_PORT)
    if parts.user is not None or parts.password is not None:
        raise UrlError(f"{parts.shown}: credentials do not belong into the URL: set AWS_PROFILE or AWS_ACCESS_KEY_ID")
    if len(parts.hosts) > 1 or parts.path or (parts.hosts and parts.host.port != HTTPS_PORT):
        raise UrlError(f"{parts.shown} is not kinesis://REGION; for another server add ?endpoint_url=http://HOST:PORT")
    settings = settings_of(parts, KinesisSettings, options)
    return KinesisStream(parts.shown, parts.host.name if parts.hosts else None, settings)


class KinesisStream:
    """Kinesis in one region. Any thread may use it; a forked process opens its own."""

    features = FEATURES
    problem: str | None = None

    def __init__(self, url: str, region: str | None, settings: KinesisSettings) -> None:
        self.url = url
        self._settings = settings
        self._client = AwsClient("kinesis", "Amazon Kinesis", region, settings.endpoint_url, settings.request_timeout_s)
        self._opened: weakref.WeakSet[KinesisTopic] = weakref.WeakSet()

    def open_topic(self, topic: str) -> KinesisTopic:
        self._check_open()
        _check_name(topic)
        opened = KinesisTopic(topic, self._client, self._settings)
        self._opened.add(opened)
        return opened

    def topics(self) -> list[str]:
        self._check_open()
        names: list[str] = []
        request: dict[str, Any] = {}
        while True:  # ends: with the last page
            answer = self._client.call("list_streams", self._settings.retry_s, **request)
            names += answer["StreamNames"]
            if not answer.get("HasMoreStreams"):
                return sorted(names)
            request = {"ExclusiveStartStreamName": names[-1]}

    def retention_s(self, topic: str) -> float | None:
        self._check_open()
        answer = self._client.call("describe_stream_summary", self._settings.retry_s, StreamName=topic)
        hours: int = answer["StreamDescriptionSummary"]["RetentionPeriodHours"]
        return 3600.0 * hours

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        """Create a stream with `partitions` shards, and wait until it can be used."""
        self._check_open()
        _check_name(topic)
        shards = checked_partitions(partitions, self._settings.default_shards)
        try:
            self._client.call("create_stream", self._settings.retry_s, StreamName=topic, ShardCount=shards)
        except RefusedError as error:
            if error.code == "ResourceInUseException":
                raise TopicExistsError(f"stream {topic!r} exists in {self._client.where}") from error
            raise
        self._wait_until(topic, "ACTIVE")

    def delete_topic(self, topic: str) -> None:
        """Delete a stream and all of its records. Raises UnknownTopicError."""
        self._check_open()
        _check_name(topic)
        try:
            self._client.call("delete_stream", self._settings.retry_s, StreamName=topic, EnforceConsumerDeletion=True)
        except RefusedError as error:
            if error.code == "ResourceNotFoundException":
                raise Shards(self._client, topic, 0.0).unknown() from error
            raise
        self._wait_until(topic, None)

    def check_reachable(self) -> None:
        self._client.call("list_streams", self._settings.request_timeout_s, Limit=1)

    def check_there(self, timeout_s: float) -> None:
        self._client.check_there(timeout_s)

    def check_usable(self) -> None:
        """Each request has a connection of its own, so no problem lasts."""

    def close(self) -> None:
        for topic in list(self._opened):
            topic.close()
        self._client.close()

    def _wait_until(self, topic: str, wanted: str | None) -> None:
        """Return once a stream has this status, or is gone."""
        until_s = time.monotonic() + self._settings.delivery_timeout_s
        delays_s = _POLLS.delays_s()
        while (status := self._status(topic)) != wanted:
            if time.monotonic() > until_s:
                raise StreamError(f"stream {topic!r} is still {status} in {self._client.where}: look again later")
            self._client.sleep(next(delays_s))
            self._check_open()

    def _status(self, topic: str) -> str | None:
        try:
            answer = self._client.call("describe_stream_summary", self._settings.retry_s, StreamName=topic)
        except RefusedError as error:
            if error.code == "ResourceNotFoundException":
                return None
            raise
        return str(answer["StreamDescriptionSummary"]["StreamStatus"])

    def _check_open(self) -> None:
        if self._client.is_closed:
            raise ConnectionClosedError(f"the connection to {self.url} is closed: connect again")


def _check_name(topic: str) -> None:
    check_topic_name(topic)
    if len(topic) > LONGEST_NAME:
        raise InvalidTopicError(f"{topic!r} is longer than {LONGEST_NAME} characters, which Kinesis does not allow")
