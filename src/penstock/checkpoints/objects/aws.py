"""Clients for AWS, or compatible services, with the usual credentials, and the translation of their errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from penstock.errors import BrokerUnavailableError, ConfigError, NotAllowedError, StoreUnavailableError
from penstock.streams.adapting.aws import RefusedError, boto3_client
from penstock.streams.adapting.aws import translated_errors as aws_errors

ATTEMPTS: Final = 4

NO_SUCH_PLACE: Final = frozenset({"NoSuchBucket", "ResourceNotFoundException"})
WRONG_REGION: Final = frozenset(
    {"301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)
_BUSY: Final = frozenset({"ResourceInUseException", "TransactionInProgressException"})


def options_in(url: str, scheme: str, known: frozenset[str]) -> tuple[str, str, dict[str, str]]:
    """The host, the path and the options of a URL. Unknown options are refused."""
    parts = urlsplit(url)
    if parts.scheme != scheme:
        raise ConfigError(f"{url!r} does not begin with {scheme}://")
    if parts.fragment or "@" in parts.netloc:
        raise ConfigError(f"{url!r}: credentials and fragments are not allowed; credentials come from the AWS chain")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"{url!r}: there is no option {name!r}; there are {', '.join(sorted(known))}")
        if not value:
            raise ConfigError(f"{url!r}: the option {name!r} has no value")
    return parts.netloc, unquote(parts.path.removeprefix("/")), options


def client(service: str, region: str | None, endpoint: str | None, timeout_s: float) -> Any:
    """A boto3 client with the credentials of the usual chain: environment, profile, role."""
    return boto3_client(
        service,
        f"checkpoints in {service}",
        region,
        endpoint,
        timeout_s,
        ATTEMPTS,
        # Not all S3-compatible stores support the newer checksums; our data contains its own.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3=None if endpoint is None else {"addressing_style": "path"},
    )


@contextlib.contextmanager
def translated_errors(where: str, *, missing: str, denied: str) -> Iterator[None]:
    """Turn boto3's errors into StoreUnavailableError where a retry may help, ConfigError where not. `missing` says what
    to do when the bucket or table is not there, `denied` what must be permitted."""
    try:
        with aws_errors(where):
            yield
    except BrokerUnavailableError as error:
        raise (StoreUnavailableError if error.retriable else ConfigError)(str(error)) from error
    except NotAllowedError as error:
        raise ConfigError(f"{error}. {denied}") from error
    except RefusedError as error:
        if error.code in _BUSY:
            raise StoreUnavailableError(f"{error}. It is refused for now; try again later") from error
        if error.code in NO_SUCH_PLACE:
            raise ConfigError(f"{error}. {missing}") from error
        if error.code in WRONG_REGION:
            raise ConfigError(f"{error}. It is in another region: pass that one as region=") from error
        raise ConfigError(str(error)) from error


def quoted(name: str) -> str:
    """A name as a path segment: without slashes, and never `.` or `..`."""
    return quote(name, safe="").replace(".", "%2E")


def unquoted(piece: str) -> str:
    return unquote(piece)
