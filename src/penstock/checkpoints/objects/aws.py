"""Clients for AWS, or compatible services, with the usual credentials, and the translation of their errors."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from penstock.errors import ConfigError, MissingExtraError, PenstockError, StoreUnavailableError
from penstock.streams.adapting.aws import BAD_CREDENTIALS, DENIED, EXTRA, FOR_NOW, code_of, descriptions

CONNECTIONS: Final = 32
ATTEMPTS: Final = 4

NO_SUCH_PLACE: Final = frozenset({"NoSuchBucket", "ResourceNotFoundException"})
WRONG_REGION: Final = frozenset(
    {"301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)
_BUSY: Final = FOR_NOW | {"ResourceInUseException", "TransactionInProgressException"}


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
    try:
        boto3: Any = importlib.import_module("boto3.session")
        botocore: Any = importlib.import_module("botocore.session")
        config: Any = importlib.import_module("botocore.config")
    except ImportError:
        raise MissingExtraError(f"checkpoints in {service}", EXTRA) from None
    settings: dict[str, Any] = {
        "connect_timeout": timeout_s,
        "read_timeout": timeout_s,
        "max_pool_connections": CONNECTIONS,
        "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
        # Not all S3-compatible stores support the newer checksums; our data contains its own.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    if endpoint is not None:
        settings["s3"] = {"addressing_style": "path"}
    with translated_errors(service, {}):
        try:
            session = botocore.get_session()
            session.register_component("data_loader", descriptions())
            return boto3.Session(botocore_session=session).client(
                service, region_name=region, endpoint_url=endpoint, config=config.Config(**settings)
            )
        except ValueError as error:
            raise ConfigError(f"cannot create a client for {service}: {error}") from None


@contextlib.contextmanager
def translated_errors(where: str, remedies: Mapping[str, str]) -> Iterator[None]:
    """Translate boto3's errors. `remedies` say what to do when the bucket or table is missing, and what must be
    permitted."""
    exceptions: Any = importlib.import_module("botocore.exceptions")
    try:
        yield
    except exceptions.ClientError as error:
        raise translated_refusal(error, where, remedies) from error
    except (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
    ) as error:
        raise ConfigError(
            f"{where}: there are no AWS credentials: {error}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE, or run with a role"
        ) from error
    except exceptions.NoRegionError as error:
        raise ConfigError(f"{where}: there is no AWS region: write it into the URL, or set AWS_REGION") from error
    except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
        raise StoreUnavailableError(
            f"{where} cannot be reached: {error}. Check the network, the region and the endpoint"
        ) from error
    except exceptions.BotoCoreError as error:
        raise ConfigError(f"{where}: {error}") from error


def translated_refusal(error: Any, where: str, remedies: Mapping[str, str]) -> PenstockError:
    """Translate an error answer: StoreUnavailableError where a retry may help, ConfigError where not."""
    code, status = code_of(error), int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = f"{where}: {error.response.get('Error', {}).get('Message') or error} ({code})"
    if code in _BUSY or status >= 500:
        return StoreUnavailableError(f"{text}. It is refused for now; try again later")
    if code in NO_SUCH_PLACE:
        return ConfigError(f"{text}. {remedies.get('missing', 'Check the name')}")
    if code in BAD_CREDENTIALS:
        return ConfigError(f"{text}. Renew or correct the AWS credentials")
    if code in DENIED:
        return ConfigError(f"{text}. {remedies.get('denied', 'Check the permissions of the credentials')}")
    if code in WRONG_REGION:
        return ConfigError(f"{text}. It is in another region: pass that one as region=")
    return ConfigError(text)


def quoted(name: str) -> str:
    """A name as a path segment: without slashes, and never `.` or `..`."""
    return quote(name, safe="").replace(".", "%2E")


def unquoted(piece: str) -> str:
    return unquote(piece)
