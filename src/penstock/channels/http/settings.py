"""Settings of an `http:` or `https:` URL, and the certificates that they name."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final, Literal

from penstock.errors import ConfigError
from penstock.streams.backend_url import check_key_has_certificate, check_not_negative, check_positive

SignatureStyle = Literal["standard", "github", "stripe"]

MOST_BODY_BYTES: Final = 50_000_000
"""What is larger does not fit into an inbox."""
DEFAULT_HEADERS: Final = (
    "content-type,idempotency-key,webhook-id,webhook-timestamp,x-github-*,x-gitlab-event*,x-event-*,x-shopify-*,ce-*,"
    "traceparent,tracestate"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Settings of an `http:` or `https:` URL."""

    secret_env: str | None = None
    """The environment variable with the secret that requests are signed with. Several, separated by spaces or lines:
    each is accepted, so that a secret can be replaced; requests that are sent are signed with all of them."""
    secret_file: str | None = None
    """The same in a file, which is read again when it changes."""
    signature: SignatureStyle = "standard"
    """How requests are signed: as Standard Webhooks specifies, or as GitHub or Stripe do. Without a secret, they are
    not."""
    tolerance_s: float = 300.0
    """Listening: how old the time in a signature may be, or how far in the future. GitHub's signatures have no time."""
    token_env: str | None = None
    """The environment variable with a bearer token: required from senders, or sent to the receiver."""
    cert_file: str | None = None
    """The certificate, in PEM, of the server that listens, or of the client that sends. With `key_file`."""
    key_file: str | None = None
    """The key of the certificate, in PEM."""
    ca_file: str | None = None
    """Sending: the certificates to trust, in PEM; None: those of the system. Listening: senders need a certificate that
    one of these has signed."""
    insecure: bool = False
    """Listening: allow an address that other machines can reach without TLS, or without a secret, token, password or
    client certificate."""
    key: str | None = None
    """Listening: where the key of a record comes from, `header:NAME` or `json:/POINTER` in the body. Where there is
    none, the key is null. None: the header `penstock-key`."""
    headers: str = DEFAULT_HEADERS
    """Listening: which headers of a request become headers of the record; names with `*`, separated by commas.
    Credentials, cookies and signatures never do."""
    max_body_bytes: int = 1_000_000
    """The largest body, also after decompression. Listening: larger ones are answered with 413; sending: they are
    refused."""
    buffer: int = 1_000
    """Listening: how many records wait for `listen`. Further requests are answered with 503."""
    buffer_bytes: int = 64_000_000
    """Listening: how many bytes of requests and of records without an answer are held at a time. Further requests are
    answered with 503."""
    answer_timeout_s: float = 30.0
    """Listening: how long a request waits until its record is stored. After that it is answered with 504."""
    idle_timeout_s: float = 30.0
    """Listening: how long a connection may take to send the head of a request, and then its body."""
    max_connections: int = 1_000
    """Listening: how many connections are open at a time. Further ones are answered with 503 and closed."""
    retry_after_s: int = 5
    """Listening: the `Retry-After` of answers with 503."""
    idempotency_keys: int = 100_000
    """Listening: how many idempotency keys of stored records are remembered. 0: none."""
    idempotency_window_s: float = 3_600.0
    """Listening: for how long. A gateway keeps delivered records in its inbox for as long, so that it remembers them
    when it is restarted."""
    idempotency_key: str | None = None
    """Listening: where the idempotency key of a request is, as in `key`. None: in the header `webhook-id`,
    `idempotency-key` or `x-github-delivery`."""
    health_path: str = "/healthz"
    """Listening: answers a GET with 200 while records are accepted, else with 503. Empty: none."""
    query: str = ""
    """Sending: the query of the URL that requests go to, percent-encoded: `query=code%3D123`."""
    method: Literal["POST", "PUT"] = "POST"
    """Sending: the method of the requests."""
    content_type: str = "application/json"
    """Sending: the content type of records without a header `content-type`."""
    batch: int = 1
    """Sending: how many records are one request. With more than 1, its body is a JSON array of their values, which must
    be JSON, and keys and headers are not sent."""
    concurrency: int = 16
    """Sending: how many requests are under way at a time. Records with the same key keep their order."""
    timeout_s: float = 15.0
    """Sending: how long a receiver may take to answer."""
    connect_timeout_s: float = 5.0
    """Sending: how long connecting may take."""
    attempts: int = 4
    """Sending: how often a request is tried within one `send`, when the receiver is away, busy (408, 425, 429) or
    broken (5xx)."""
    first_delay_s: float = 0.2
    """Sending: the pause before the second attempt; it doubles from attempt to attempt."""
    max_delay_s: float = 10.0
    """Sending: the longest pause. A receiver that asks for a longer one (`Retry-After`) gets no requests for that
    long, at most an hour, and `send` raises an error."""
    breaker_after: int = 20
    """Sending: after this many failed attempts in a row, `send` raises an error at once and only tries the receiver now
    and then. 0: never."""
    redirects: int = 0
    """Sending: how many redirects with 307 or 308 are followed. Others never are."""
    private_addresses: bool = True
    """Sending: false refuses to connect to addresses that are not public, such as 10.0.0.1 or 127.0.0.1: for URLs that
    strangers chose."""

    def __post_init__(self) -> None:
        check_positive(
            self,
            *("tolerance_s", "answer_timeout_s", "idle_timeout_s", "timeout_s", "connect_timeout_s", "max_delay_s"),
            *("max_body_bytes", "buffer", "buffer_bytes", "max_connections", "batch", "concurrency", "attempts"),
        )
        check_not_negative(
            self,
            *("retry_after_s", "idempotency_keys", "idempotency_window_s", "first_delay_s", "breaker_after"),
            "redirects",
        )
        if self.first_delay_s > self.max_delay_s:
            raise ConfigError(f"first_delay_s={self.first_delay_s} must not be larger than max_delay_s")
        if self.secret_env is not None and self.secret_file is not None:
            raise ConfigError("secret_env and secret_file exclude each other: choose one")
        check_key_has_certificate(self, "key_file", "cert_file")
        if self.max_body_bytes > MOST_BODY_BYTES:
            raise ConfigError(f"max_body_bytes={self.max_body_bytes} must not be larger than {MOST_BODY_BYTES}")
        for name in ("key", "idempotency_key"):
            value = getattr(self, name)
            if value is not None and not value.startswith(("header:", "json:/")):
                raise ConfigError(f"{name}={value!r} must be header:NAME or json:/POINTER, such as json:/customer/id")
        if self.health_path and not self.health_path.startswith("/"):
            raise ConfigError(f"health_path={self.health_path!r} must begin with a slash, or be empty")

    @property
    def is_signed(self) -> bool:
        return self.secret_env is not None or self.secret_file is not None


def server_tls(settings: HttpSettings, shown: str) -> ssl.SSLContext:
    if settings.cert_file is None:
        raise ConfigError(f"listening at {shown} needs a certificate: add cert_file=FILE and key_file=FILE, in PEM")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    _load(context, settings, shown)
    if settings.ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(settings: HttpSettings, shown: str) -> ssl.SSLContext:
    context = ssl.create_default_context() if settings.ca_file is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(context, settings, shown)
    return context


def _load(context: ssl.SSLContext, settings: HttpSettings, shown: str) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if settings.cert_file is not None:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        if settings.ca_file is not None:
            context.load_verify_locations(settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (settings.cert_file, settings.key_file, settings.ca_file)))
        raise ConfigError(f"the certificates for {shown} cannot be used ({files}): {error}") from error
