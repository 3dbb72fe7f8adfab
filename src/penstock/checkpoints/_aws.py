"""Reaching AWS, or what speaks like it: clients with the usual credentials, and their errors in our words."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from penstock.errors import ConfigError, MissingExtraError, PenstockError, StoreUnavailableError

EXTRA: Final = "aws"
CONNECTIONS: Final = 32
ATTEMPTS: Final = 4

NO_SUCH_PLACE: Final = frozenset({"NoSuchBucket", "ResourceNotFoundException"})
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
WRONG_REGION: Final = frozenset(
    {"301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)
FOR_NOW: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "InternalError",
        "InternalServerError",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestTimeout",
        "RequestTimeoutException",
        "RequestTimeTooSkewed",
        "ResourceInUseException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)


def options_in(url: str, scheme: str, known: frozenset[str]) -> tuple[str, str, dict[str, str]]:
    """What stands for the host, what stands for the path, and the options, of a URL. Unknown options are refused."""
    parts = urlsplit(url)
    if parts.scheme != scheme:
        raise ConfigError(f"{url!r} does not begin with {scheme}://")
    if parts.fragment or "@" in parts.netloc:
        raise ConfigError(f"{url!r}: credentials and fragments have no place here; credentials come from the AWS chain")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"{url!r}: there is no option {name!r}; there are {', '.join(sorted(known))}")
        if not value:
            raise ConfigError(f"{url!r}: the option {name!r} has no value")
    return parts.netloc, unquote(parts.path.removeprefix("/")), options


def client(service: str, region: str | None, endpoint: str | None, timeout_s: float) -> Any:
    """A client of boto3 with the credentials of the usual chain: environment, profile, role."""
    try:
        boto3: Any = importlib.import_module("boto3.session")
        botocore: Any = importlib.import_module("botocore.session")
        config: Any = importlib.import_module("botocore.config")
    except ImportError:
        raise MissingExtraError(f"keeping checkpoints in {service}", EXTRA) from None
    settings: dict[str, Any] = {
        "connect_timeout": timeout_s,
        "read_timeout": timeout_s,
        "max_pool_connections": CONNECTIONS,
        "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
        # Stores that are only like S3 do not all know the newer checksums; ours are in what we write.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    if endpoint is not None:
        settings["s3"] = {"addressing_style": "path"}
    with errors_in_our_words(service, {}):
        try:
            session = botocore.get_session()
            session.register_component("data_loader", descriptions())
            return boto3.Session(botocore_session=session).client(
                service, region_name=region, endpoint_url=endpoint, config=config.Config(**settings)
            )
        except ValueError as error:
            raise ConfigError(f"{service} cannot be reached so: {error}") from None


@functools.cache
def descriptions() -> Any:
    """What botocore knows about the services: large files, which are read once for all clients. Credentials and
    settings belong to each session, and are looked up for each client."""
    return importlib.import_module("botocore.loaders").create_loader()


@contextlib.contextmanager
def errors_in_our_words(where: str, remedies: Mapping[str, str]) -> Iterator[None]:
    """Raise what boto3 raises as one of our errors. `remedies`: what to do when there is no such place, and what must
    be allowed."""
    exceptions: Any = importlib.import_module("botocore.exceptions")
    try:
        yield
    except exceptions.ClientError as error:
        raise refusal_in_our_words(error, where, remedies) from error
    except (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
    ) as error:
        raise ConfigError(
            f"{where}: there are no AWS credentials: {error}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE, or run where there is a role"
        ) from error
    except exceptions.NoRegionError as error:
        raise ConfigError(f"{where}: no AWS region is named: write it into the URL, or set AWS_REGION") from error
    except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
        raise StoreUnavailableError(
            f"{where} cannot be reached: {error}. Check the network, the region and the endpoint"
        ) from error
    except exceptions.BotoCoreError as error:
        raise ConfigError(f"{where}: {error}") from error


def refusal_in_our_words(error: Any, where: str, remedies: Mapping[str, str]) -> PenstockError:
    """An answer that says no: StoreUnavailableError where trying again may help, ConfigError where not."""
    code, status = code_of(error), int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = f"{where}: {error.response.get('Error', {}).get('Message') or error} ({code})"
    if code in FOR_NOW or status >= 500:
        return StoreUnavailableError(f"{text}. It is refused for now")
    if code in NO_SUCH_PLACE:
        return ConfigError(f"{text}. {remedies.get('missing', 'Check the name')}")
    if code in BAD_CREDENTIALS:
        return ConfigError(f"{text}. Renew or correct the AWS credentials")
    if code in DENIED:
        return ConfigError(f"{text}. {remedies.get('denied', 'Check what the credentials may do')}")
    if code in WRONG_REGION:
        return ConfigError(f"{text}. It is in another region: name that one with region=")
    return ConfigError(text)


def code_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def quoted(name: str) -> str:
    """A name as a piece of a path: without slashes, and never one of the dots that mean a folder."""
    return quote(name, safe="").replace(".", "%2E")


def unquoted(piece: str) -> str:
    return unquote(piece)
