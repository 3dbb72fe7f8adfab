"""Addresses of channels that bind or connect, `SCHEME+tcp://HOST:PORT/NAME` and `SCHEME+ipc:/PATH`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import UrlError
from penstock.model.addresses import check_exposure
from penstock.streams.backend_url import BackendUrl, name_in_url


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a channel meets its peers."""

    name: str
    """Of the channel."""
    transport: Literal["tcp", "ipc"]
    host: str
    port: int
    path: str
    shown: str

    def check_exposure(self, *, allow: str, insecure: bool) -> None:
        """Raise ConfigError if other machines could reach it once it is bound, unless `insecure`."""
        if self.transport == "tcp":
            check_exposure(
                "0.0.0.0" if self.host == "*" else self.host,
                what=f"binding {self.shown}",
                exposes="send records here, or receive them",
                allow=allow,
                insecure=insecure,
            )


def endpoint_of(url: BackendUrl) -> Endpoint:
    """The endpoint that a URL names. UrlError says what is wrong with the URL."""
    scheme, _, transport = url.scheme.partition("+")
    if url.user or url.password:
        raise UrlError(f"{url.shown!r} has a user or password, and {scheme} has none")
    if transport == "ipc":
        if url.hosts or not url.path.strip("/"):
            raise UrlError(f"{url.shown!r} is not {scheme}+ipc:/PATH or {scheme}+ipc:///PATH")
        return Endpoint(name_in_url(url.shown.rstrip("/")), "ipc", "", 0, url.path, url.shown)
    if len(url.hosts) != 1:
        raise UrlError(f"{url.shown!r} is not {scheme}+tcp://HOST:PORT or {scheme}+tcp://HOST:PORT/NAME")
    return Endpoint(name_in_url(url.shown.rstrip("/")), "tcp", url.host.name, url.host.port, "", url.shown)
