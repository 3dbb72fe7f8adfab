"""Clients for AWS, or for services that speak the same protocols, and what their errors mean to a stream or queue.

Credentials are found by boto3's usual chain: environment, profile, role. They are never part of a URL.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.errors import BrokerUnavailableError, ConfigError, MissingExtraError, NotAllowedError, StreamError
from penstock.model.retry import Retry

EXTRA: Final = "aws"
_CONNECTIONS: Final = 32
LONGEST_PAUSE_S: Final = 2.0
_AGAIN: Final = Retry(None, first_delay_s=0.05, max_delay_s=LONGEST_PAUSE_S)
_CHANCE: Final = random.Random()

DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException", "AllAccessDisabled", "403", "Forbidden"})
BAD_CREDENTIALS: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "InvalidToken",
        "MissingAuthenticationToken",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
THROTTLED: Final = frozenset(
    {
        "KMSThrottlingException",
        "LimitExceededException",
        "OverLimit",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
    }
)
FOR_NOW: Final = THROTTLED | {
    "BandwidthLimitExceeded",
    "InternalError",
    "InternalFailure",
    "InternalFailureException",
    "InternalServerError",
    "RequestTimeout",
    "RequestTimeoutException",
    "RequestTimeTooSkewed",
    "ServiceUnavailable",
}


_NOT_IMPLEMENTED: Final = 501


class ThrottledError(BrokerUnavailableError):
    """AWS refused a request because there were too many. Another attempt a little later may succeed."""


class RefusedError(StreamError):
    """AWS refused a request, and would refuse it again."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
        """AWS' name of the error, such as ResourceNotFoundException."""


@functools.cache
def descriptions() -> Any:
    """botocore's service descriptions: large files, loaded once for all clients. Credentials and settings belong to
    each session, and are looked up for each client."""
    return importlib.import_module("botocore.loaders").create_loader()


def code_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def pause_s(failures: int) -> float:
    """How long to wait after `failures` in a row: longer each time, with jitter."""
    return _AGAIN.backoff_s(failures + 1, _CHANCE)


def boto3_client(
    service: str, what: str, region: str | None, endpoint_url: str | None, timeout_s: float, attempts: int, **more: Any
) -> Any:
    """A boto3 client that tries each request `attempts` times. `what` names the system in messages; `timeout_s` is how
    long a connection or an answer may take; `more` are settings of botocore's Config."""
    try:
        boto3: Any = importlib.import_module("boto3.session")
        botocore: Any = importlib.import_module("botocore.session")
        config: Any = importlib.import_module("botocore.config")
        errors: Any = importlib.import_module("botocore.exceptions")
    except ImportError:
        raise MissingExtraError(what, EXTRA) from None
    settings = config.Config(
        connect_timeout=timeout_s,
        read_timeout=timeout_s,
        max_pool_connections=_CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": attempts},
        tcp_keepalive=True,
        **more,
    )
    try:
        session = botocore.get_session()
        session.register_component("data_loader", descriptions())
        return boto3.Session(botocore_session=session).client(
            service, region_name=region, endpoint_url=endpoint_url, config=settings
        )
    except errors.NoRegionError:
        raise ConfigError(f"{what} needs a region: write it into the URL, or set AWS_REGION") from None
    except (ValueError, errors.BotoCoreError) as error:
        raise ConfigError(f"cannot create a client for {what}: {error}") from None


@contextlib.contextmanager
def translated_errors(where: str) -> Iterator[None]:
    """Turn boto3's errors into ThrottledError or another BrokerUnavailableError, NotAllowedError, or RefusedError."""
    errors: Any = importlib.import_module("botocore.exceptions")
    try:
        yield
    except errors.ClientError as error:
        raise _refusal(error, where) from error
    except (errors.NoCredentialsError, errors.PartialCredentialsError, errors.CredentialRetrievalError) as error:
        raise BrokerUnavailableError(
            f"{where}: there are no AWS credentials: {error}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE, or run with a role",
            retriable=False,
        ) from error
    except (errors.HTTPClientError, errors.ConnectionError) as error:
        raise _unreachable(where, error) from error
    except errors.ParamValidationError as error:
        raise RefusedError(f"{where} refused a request: {error}", "ValidationException") from error
    except errors.BotoCoreError as error:
        raise BrokerUnavailableError(f"{where}: {error}") from error


def _unreachable(where: str, error: Exception) -> BrokerUnavailableError:
    return BrokerUnavailableError(
        f"{where} cannot be reached: {error}. Check the network, the region and the endpoint (endpoint_url)"
    )


def _refusal(error: Any, where: str) -> Exception:
    # The codes of SQS have a namespace: AWS.SimpleQueueService.NonExistentQueue.
    code, status = code_of(error), int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    name = code.rpartition(".")[2]
    said = " ".join(str(error.response.get("Error", {}).get("Message") or error).split())
    if said.lower().startswith(("<!doctype html", "<html")):
        return BrokerUnavailableError(
            f"{where} does not answer as AWS does, but with a web page: check the endpoint (endpoint_url)",
            retriable=status >= 500 and status != _NOT_IMPLEMENTED,
        )
    text = f"{where} refused {error.operation_name}: {said} ({code})"
    if name in BAD_CREDENTIALS:
        return BrokerUnavailableError(f"{text}. Renew or correct the AWS credentials", retriable=False)
    if name in DENIED:
        return NotAllowedError(f"{text}. Allow it in the IAM policy of the credentials")
    if name in THROTTLED:
        return ThrottledError(f"{text}. There are too many requests: try again later")
    if name in FOR_NOW or status >= 500:
        return BrokerUnavailableError(f"{text}. It may succeed later")
    return RefusedError(text, name)


class AwsClient:
    """A boto3 client whose errors are Penstock's. It never repeats a request by itself, unless `patience_s` says so."""

    def __init__(self, service: str, what: str, region: str | None, endpoint_url: str | None, timeout_s: float) -> None:
        """`what` names the system in messages; `timeout_s` is how long a connection or an answer may take."""
        self._closing = threading.Event()
        self._client = boto3_client(service, what, region, endpoint_url, timeout_s, attempts=1)
        self.endpoint: str = self._client.meta.endpoint_url
        self.where = f"{what} at {self.endpoint}"

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    def call(self, operation: str, patience_s: float = 0.0, **arguments: Any) -> dict[str, Any]:
        """The answer to a request. What may pass is tried again for `patience_s`.

        Raises ThrottledError or another BrokerUnavailableError, NotAllowedError, and RefusedError with AWS' code.
        """
        until_s = time.monotonic() + patience_s
        delays_s = _AGAIN.delays_s()
        while True:  # ends: at the latest when the patience does
            try:
                with translated_errors(self.where):
                    answer: dict[str, Any] = getattr(self._client, operation)(**arguments)
                    return answer
            except BrokerUnavailableError as error:
                wait_s = next(delays_s)
                if not error.retriable or time.monotonic() + wait_s > until_s:
                    raise
                self.sleep(wait_s)

    def sleep(self, wait_s: float) -> None:
        """Wait, but not longer than until the client is closed."""
        self._closing.wait(wait_s)

    def check_there(self, timeout_s: float) -> None:
        """Return once the endpoint accepts a connection."""
        parts = urlsplit(self.endpoint)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname or "", port), timeout_s).close()
        except OSError as error:
            raise _unreachable(self.where, error) from error

    def close(self) -> None:
        self._closing.set()
        self._client.close()
