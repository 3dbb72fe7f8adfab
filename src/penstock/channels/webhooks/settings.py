"""Settings of a `webhooks:` URL."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from penstock.channels.http.settings import HttpSettings
from penstock.errors import ConfigError
from penstock.streams.backend_url import check_key_has_certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhooksSettings:
    """Settings of a `webhooks:` URL."""

    register: str | None = None
    """The address, HOST:PORT, at which receivers register. None: only programs that use the file register them."""
    token_env: str | None = None
    """The environment variable with the bearer token that registering needs."""
    cert_file: str | None = None
    """The certificate, in PEM, with which `register` is served by https."""
    key_file: str | None = None
    """The key of the certificate, in PEM."""
    insecure: bool = False
    """Allow a `register` that other machines can reach without TLS or without a token."""
    event: str | None = None
    """Where the event type of a record is: `header:NAME`, or `json:/POINTER` in its value. None: in the header
    `ce-type`, `x-event-type` or `event-type`, or else in `type` of the value."""
    content_type: str = "application/json"
    """The content type of records without a header `content-type`."""
    verify: bool = True
    """Whether a receiver must return a challenge before it is registered."""
    allow_http: bool = False
    """Whether receivers may have `http:` URLs, too."""
    private_addresses: bool = False
    """Whether receivers may be at addresses that are not public, such as 10.0.0.1 or 127.0.0.1."""
    max_receivers: int = 1_000
    """How many receivers may be registered."""
    concurrency: int = 4
    """How many requests to one receiver are under way at a time. Records with the same key keep their order."""
    timeout_s: float = 15.0
    """How long a receiver may take to answer."""
    first_delay_s: float = 1.0
    """The pause before a failed request is tried again; it doubles from attempt to attempt."""
    max_delay_s: float = 600.0
    """The longest pause."""
    disable_after_s: float = 259_200.0
    """A receiver to which nothing could be delivered for so long is disabled."""
    max_waiting: int = 100_000
    """A receiver for which more messages than this wait is disabled."""
    keep_s: float = 604_800.0
    """How long messages are kept for disabled receivers, and refused ones for inspection."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise ConfigError(f"{field.name}={value} must be positive")
        if self.first_delay_s > self.max_delay_s:
            raise ConfigError(f"first_delay_s={self.first_delay_s} must not be larger than max_delay_s")
        if self.event is not None and not self.event.startswith(("header:", "json:/")):
            raise ConfigError(f"event={self.event!r} must be header:NAME or json:/POINTER, such as json:/type")
        check_key_has_certificate(self, "key_file", "cert_file")
        if self.register is None and (self.token_env is not None or self.cert_file is not None):
            raise ConfigError("token_env and cert_file are for the address where receivers register: set register")

    def http(self) -> HttpSettings:
        """The settings of requests to receivers."""
        return HttpSettings(
            content_type=self.content_type,
            concurrency=self.concurrency,
            timeout_s=self.timeout_s,
            first_delay_s=min(self.first_delay_s, self.max_delay_s),
            max_delay_s=self.max_delay_s,
            private_addresses=self.private_addresses,
        )
