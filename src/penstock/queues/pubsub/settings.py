"""Settings of `pubsub:` URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError
from penstock.streams.backend_url import check_not_negative, check_positive

SHORTEST_DEADLINE_S: Final = 10
LONGEST_DEADLINE_S: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class PubsubSettings:
    """Settings of a `pubsub:` URL."""

    topic: str | None = None
    """Where to send: a topic of the project, or `projects/PROJECT/topics/NAME`. None: the subscription's topic."""
    create: bool = False
    """Create the topic and the subscription if they are missing. false: what is missing is an UnknownTopicError."""
    ack_deadline_s: int = 60
    """For a subscription that is created: how long a delivery belongs to its receiver. Consumers extend it while they
    work, so it is how late a record comes again whose consumer died. 10 to 600."""
    ordering: bool = False
    """Send the key as ordering key. A subscription that is created delivers the records of one key in order."""
    exactly_once: bool = False
    """For a subscription that is created: Pub/Sub confirms acknowledgements, and delivers nothing that it confirmed."""
    dead_letters: str | None = None
    """The topic for rejected records. None: that of the subscription's dead letter policy, if it has one."""
    endpoint: str = "pubsub.googleapis.com:443"
    """Where Pub/Sub is: a regional endpoint, such as `us-east1-pubsub.googleapis.com:443`."""
    emulator: str | None = None
    """HOST:PORT of an emulator, to which no credentials are sent. `PUBSUB_EMULATOR_HOST` does the same."""
    credentials_file: str | None = None
    """The key of a service account, as JSON. None: application default credentials."""
    connect_timeout_s: float = 10.0
    """How long opening the queue waits for Pub/Sub."""
    request_timeout_s: float = 30.0
    """How long the answer to a request may take."""
    retry_s: float = 15.0
    """How long sending and settling are repeated while Pub/Sub is busy or cannot be reached."""

    def __post_init__(self) -> None:
        if not SHORTEST_DEADLINE_S <= self.ack_deadline_s <= LONGEST_DEADLINE_S:
            raise ConfigError(
                f"ack_deadline_s={self.ack_deadline_s} must be an integer from {SHORTEST_DEADLINE_S} to "
                f"{LONGEST_DEADLINE_S}"
            )
        check_positive(self, "connect_timeout_s", "request_timeout_s")
        check_not_negative(self, "retry_s")
        if self.emulator is not None and self.credentials_file is not None:
            raise ConfigError("an emulator takes no credentials: omit emulator or credentials_file")
