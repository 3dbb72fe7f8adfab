"""Sockets of nng, made of settings: address, limits, encryption. They are thread-safe, and `close` wakes who waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.channels.endpoints import Endpoint
from penstock.channels.nng.settings import NngSettings
from penstock.errors import BrokerUnavailableError, ConfigError
from penstock.streams.adapting.servers import import_extra

RECONNECT_MS: Final = (100, 5_000)
"""The first and the longest pause before a connection is tried again."""


def import_pynng() -> Any:
    return import_extra("pynng", "nng", "nng")


def open_socket(
    endpoint: Endpoint,
    settings: NngSettings,
    make: Callable[[], Any],
    *,
    listens: bool,
    prepare: Callable[[Any], None] = lambda made: None,
) -> Any:
    """A socket that is bound or connects, after `prepare` was called with it. Raises BrokerUnavailableError or
    ConfigError."""
    pynng = import_pynng()
    made = make()
    try:
        made.recv_max_size = settings.max_message_bytes
        made.reconnect_time_min, made.reconnect_time_max = RECONNECT_MS
        if endpoint.transport == "tcp":
            made.tcp_keepalive = True
        binds = settings.binds(listens=listens)
        if settings.tls:
            made.tls_config = _tls(pynng, endpoint, settings, binds)
        prepare(made)
        if binds:
            endpoint.check_exposure(
                allow="set tls=true with cert_file, key_file and ca_file, or add insecure=true",
                insecure=settings.insecure or (settings.tls and settings.ca_file is not None),
            )
            made.listen(_address(endpoint, settings))
        else:
            made.dial(_address(endpoint, settings), block=False)
    except pynng.AddressInUse as error:
        made.close()
        raise BrokerUnavailableError(
            f"{endpoint.shown} cannot be bound: another process uses it. Stop that one, or set bind=false"
        ) from error
    except pynng.NNGException as error:
        made.close()
        raise ConfigError(f"{endpoint.shown} cannot be opened: {error}. Check the address and the settings") from error
    except BaseException:
        made.close()
        raise
    return made


def receive(pynng: Any, source: Any, *, block: bool) -> bytes:
    """The next message. pynng's own `recv` fails for an empty one."""
    data, size = pynng.ffi.new("char **"), pynng.ffi.new("size_t *")
    flags = pynng.lib.NNG_FLAG_ALLOC | (0 if block else pynng.lib.NNG_FLAG_NONBLOCK)
    pynng.check_err(pynng.lib.nng_recv(source.socket, data, size, flags))
    if not size[0]:
        return b""
    message: bytes = pynng.ffi.unpack(data[0], size[0])
    pynng.lib.nng_free(data[0], size[0])
    return message


def _address(endpoint: Endpoint, settings: NngSettings) -> str:
    if endpoint.transport == "ipc":
        return f"ipc://{endpoint.path}"
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{'tls+tcp' if settings.tls else 'tcp'}://{host}:{endpoint.port}"


def _tls(pynng: Any, endpoint: Endpoint, settings: NngSettings, binds: bool) -> Any:
    if binds and settings.cert_file is None:
        raise ConfigError(f"{endpoint.shown}: tls needs cert_file and key_file on the side that binds")
    if not binds and settings.ca_file is None:
        raise ConfigError(f"{endpoint.shown}: tls needs ca_file on the side that connects")
    config = pynng.TLSConfig
    options: dict[str, Any] = {}
    if settings.ca_file is not None:
        options |= {"ca_string": _read(settings.ca_file), "auth_mode": config.AUTH_MODE_REQUIRED}
    if settings.cert_file is not None and settings.key_file is not None:
        options |= {"own_cert_string": _read(settings.cert_file), "own_key_string": _read(settings.key_file)}
    if not binds:
        options["server_name"] = endpoint.host
    try:
        return config(config.MODE_SERVER if binds else config.MODE_CLIENT, **options)
    except pynng.NNGException as error:
        raise ConfigError(f"{endpoint.shown}: the certificates cannot be used: {error}") from error


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
