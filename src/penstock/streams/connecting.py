"""`connect` and `open_stream`: from a URL to a connection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Unpack

from penstock.abc import Reachable, Stream
from penstock.errors import PenstockError, UrlError
from penstock.model.pointer_forms import PointerText
from penstock.streams.capability import capability, pointer_text_of
from penstock.streams.connection import Connection
from penstock.streams.options import ConnectOptions
from penstock.streams.schemes import STREAMS, has_scheme, listed_schemes, opener, scheme_of, what_it_is
from penstock.streams.url import KAFKA_SCHEMES, is_memory, without_password


def connect(url: str, **given: Unpack[ConnectOptions]) -> Connection:
    """Connect to the stream at a URL. `penstock.connect`, which adds the spool, explains URLs and options.

    Raises UrlError, ConfigError for an invalid option, and BrokerUnavailableError if the stream could not be reached.
    """
    backend = open_backend(url, given)
    reachable = capability(backend, Reachable)
    if reachable is not None:
        try:
            reachable.check_reachable()
        except BaseException:
            backend.close()
            raise
    return Connection(backend)


def connect_for(url: str, *, client_id: str, connect_timeout_s: float | None = None, **given: Any) -> Connection:
    """Connect for a command or the console, with defaults of their own. Only Kafka's backends have these options."""
    if scheme_of(url) in KAFKA_SCHEMES:
        given = {"client_id": client_id, **given}
        if connect_timeout_s is not None:
            given = {"connect_timeout_s": connect_timeout_s, **given}
    return connect(url, **given)


def open_stream(url: str, **options: Any) -> Stream:
    """Like `connect`, with options that are not checked statically."""
    return connect(url, **options)


def open_backend(url: str, options: Mapping[str, Any]) -> Stream:
    """The backend of a URL, without checking that it can be reached."""
    check_url(url)
    backend: Stream = opener(STREAMS, url, "a stream")(url, options)
    return backend


def check_url(url: object) -> None:
    """Raise UrlError unless a backend for the URL is installed, and ConfigError unless it can be imported."""
    if not isinstance(url, str):
        raise UrlError(f"{url!r} is not a URL: pass text, such as log:./data")
    if not has_scheme(STREAMS, scheme_of(url)):
        raise UrlError(
            f"{without_password(url)!r} is not a URL of a stream"
            f"{what_it_is(STREAMS, scheme_of(url)) or _hint(url.strip())}; "
            f"schemes that are installed: {listed_schemes(STREAMS)}"
        )
    opener(STREAMS, without_password(url), "a stream")


def _hint(url: str) -> str:
    if not url:
        return ": it is empty"
    if url.startswith((".", "/", "~")):
        return f", did you mean log:{url}"
    if re.fullmatch(r"[\w.-]+:\d{1,5}", url):
        return f", did you mean kafka://{url}"
    return ""


def pointer_text_at(url: str) -> PointerText:
    """How the pointers of the stream at this URL are written, without connecting to it."""
    if scheme_of(url) in KAFKA_SCHEMES or is_memory(url):
        return str
    try:
        backend = open_backend(url, {})
    except PenstockError:
        return str
    try:
        return pointer_text_of(backend)
    finally:
        backend.close()
