"""Requests to Pub/Sub, by the stubs of Google's client library, with errors that say what to do."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    MissingExtraError,
    NotAllowedError,
    PenstockError,
    RecordTooLargeError,
    StreamError,
    UnknownTopicError,
)
from penstock.model.retry import Retry
from penstock.queues.pubsub.settings import PubsubSettings

EMULATOR: Final = "PUBSUB_EMULATOR_HOST"
FIRST_BACKOFF_S: Final = 0.1
LONGEST_BACKOFF_S: Final = 5.0
"""The longest pause between two attempts."""
AGAIN: Final = Retry(None, first_delay_s=FIRST_BACKOFF_S, max_delay_s=LONGEST_BACKOFF_S, jitter=0)
FOR_NOW: Final = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNKNOWN", "CANCELLED"}
)
"""What may be gone at the next attempt."""
CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", round(1000 * FIRST_BACKOFF_S)),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", round(1000 * LONGEST_BACKOFF_S)),
    # A peer that is silent for so long is dead. Google's servers do not allow to ask more often.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


class PubsubClient:
    """One connection to Pub/Sub. Any thread may use it; a forked process opens its own."""

    def __init__(self, settings: PubsubSettings) -> None:
        self._grpc, self.types, transports = _import_pubsub()
        self._settings = settings
        emulator = settings.emulator or (None if settings.credentials_file else os.environ.get(EMULATOR)) or None
        self.where = f"the Pub/Sub emulator at {emulator}" if emulator else f"Pub/Sub at {settings.endpoint}"
        if emulator is not None:
            self._channel = self._grpc.insecure_channel(emulator, options=CHANNEL_OPTIONS)
        else:
            self._channel = self._secure_channel(transports[0])
        publisher, subscriber = (kind(channel=self._channel) for kind in transports)
        self._stubs: dict[str, Any] = {
            "publish": publisher.publish,
            "create_topic": publisher.create_topic,
            "create_subscription": subscriber.create_subscription,
            "get_subscription": subscriber.get_subscription,
            "pull": subscriber.pull,
            "acknowledge": subscriber.acknowledge,
            "modify_ack_deadline": subscriber.modify_ack_deadline,
        }
        self._closed = threading.Event()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def call(
        self, name: str, request: Any, what: str, *, patience_s: float = 0.0, timeout_s: float | None = None
    ) -> Any:
        """The answer to a request, which is repeated for `patience_s` while Pub/Sub is busy or cannot be reached.

        `what` is the thing that the request is about, for errors. `RefusedError` has what Pub/Sub said.
        """
        until_s = time.monotonic() + patience_s
        delays_s = AGAIN.delays_s()
        while True:  # ends: with an answer, with an error that stays, or when the patience is over
            self.check_open()
            try:
                return self._stubs[name](
                    request,
                    timeout=timeout_s or self._settings.request_timeout_s,
                    metadata=self._routing(request),
                )
            except self._grpc.RpcError as error:
                refused = RefusedError(error, self.explained(error, what))
            except ValueError as error:  # what gRPC raises for a channel that another thread has closed
                self.check_open()
                raise StreamError(f"{self.where} could not be asked for {what}: {error}") from error
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not refused.is_for_now:
                raise refused
            self._closed.wait(min(next(delays_s), left_s))

    def begin(self, name: str, request: Any, timeout_s: float) -> Any:
        """Send a request, and return gRPC's future for its answer."""
        try:
            return self._stubs[name].future(request, timeout=timeout_s, metadata=self._routing(request))
        except ValueError:  # what gRPC raises for a channel that another thread has closed
            self.check_open()
            raise

    def explained(self, error: Any, what: str) -> PenstockError:
        """The error to raise for an error of gRPC, with what to do about it."""
        code, text = error.code().name, error.details() or "no reason given"
        if "larger than max" in text:
            return RecordTooLargeError(f"a request about {what} is larger than {self.where} allows: {text}")
        if code in FOR_NOW:
            return BrokerUnavailableError(f"{self.where} cannot be reached: {text} ({code}). Is it running?")
        if code == "NOT_FOUND":
            return UnknownTopicError(
                f"{self.where} has no {what}: create it, add create=true to the URL, or check the name and the project"
            )
        if code == "PERMISSION_DENIED":
            return NotAllowedError(f"{self.where} denied access to {what}: {text}")
        if code == "UNAUTHENTICATED":
            return BrokerUnavailableError(f"{self.where} refused the credentials: {text}", retriable=False)
        if code == "UNIMPLEMENTED":
            return BrokerUnavailableError(f"{self.where} is not a Pub/Sub server: {text}", retriable=False)
        return StreamError(f"{self.where} refused a request about {what}: {text} ({code})")

    def check_open(self) -> None:
        if self.is_closed:
            raise ConnectionClosedError(f"the connection to {self.where} is closed")

    def sleep(self, pause_s: float) -> None:
        """Wait, or return as soon as the client is closed."""
        self._closed.wait(pause_s)

    def close(self) -> None:
        self._closed.set()
        self._channel.close()

    def _secure_channel(self, transport: Any) -> Any:
        file = self._settings.credentials_file
        credentials = None
        if file is not None:
            service_account = importlib.import_module("google.oauth2.service_account")
            try:
                credentials = service_account.Credentials.from_service_account_file(file)
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"credentials_file={file!r} is not the key of a service account that can be read: {error}"
                ) from error
        auth = importlib.import_module("google.auth.exceptions")
        try:
            return transport.create_channel(self._settings.endpoint, credentials, options=CHANNEL_OPTIONS)
        except auth.DefaultCredentialsError as error:
            raise ConfigError(
                f"there are no credentials for {self.where}: run `gcloud auth application-default login`, set "
                f"GOOGLE_APPLICATION_CREDENTIALS or credentials_file, or set {EMULATOR} for an emulator"
            ) from error

    def _routing(self, request: Any) -> tuple[tuple[str, str], ...]:
        """The metadata by which Google's servers route a request."""
        for field in ("subscription", "topic", "name"):
            value = getattr(request, field, "")
            if value:
                return (("x-goog-request-params", f"{field}={quote(value, safe='')}"),)
        return ()


class RefusedError(Exception):
    """Pub/Sub has refused a request, or cannot be reached. `told` is the error for users."""

    def __init__(self, error: Any, told: PenstockError) -> None:
        super().__init__(str(told))
        self.told = told
        self.code: str = error.code().name
        self.error = error

    @property
    def is_for_now(self) -> bool:
        return bool(getattr(self.told, "retriable", False))

    def failed_ids(self) -> dict[str, bool] | None:
        """The ack ids that failed, and whether for good, of an exactly-once subscription; all others succeeded. None
        if the request failed as a whole."""
        status = importlib.import_module("grpc_status.rpc_status").from_call(self.error)
        info = importlib.import_module("google.rpc.error_details_pb2").ErrorInfo()
        for detail in status.details if status is not None else ():
            if detail.Unpack(info):
                failed = {name: reason for name, reason in info.metadata.items() if "_FAILURE_" in reason}
                if failed:
                    return {name: reason.startswith("PERMANENT_") for name, reason in failed.items()}
        return None


def told(call: Callable[[], Any]) -> Any:
    """Run a request. Raises the error for users if it is refused."""
    try:
        return call()
    except RefusedError as refused:
        raise refused.told from refused.error


def _import_pubsub() -> tuple[Any, Any, tuple[Any, Any]]:
    try:
        grpc = importlib.import_module("grpc")
        types = importlib.import_module("google.pubsub_v1.types")
        publisher = importlib.import_module("google.pubsub_v1.services.publisher.transports")
        subscriber = importlib.import_module("google.pubsub_v1.services.subscriber.transports")
    except ImportError:
        raise MissingExtraError("Google Pub/Sub", "pubsub") from None
    return grpc, types, (publisher.PublisherGrpcTransport, subscriber.SubscriberGrpcTransport)
