"""Sockets of ZeroMQ, made of settings: address, limits, heartbeats, encryption."""

from __future__ import annotations

import contextlib
import errno
import importlib
import socket
from pathlib import Path
from typing import Any, Final

from penstock.channels.endpoints import Endpoint
from penstock.channels.zmq.settings import ZmqSettings
from penstock.errors import BrokerUnavailableError, ConfigError
from penstock.streams.adapting.servers import import_extra

RECONNECT_MS: Final = (100, 5_000)
"""The first and the longest pause before a connection is tried again."""
_DOMAIN: Final = "penstock"
"""For which the authenticator of a context admits clients."""
_HANDSHAKE_MS: Final = 10_000
_PASSING: Final = (errno.EADDRINUSE, errno.EMFILE, errno.ENFILE)


class Sockets:
    """The ZeroMQ context of one channel, which closes what it opened. One thread at a time uses it."""

    def __init__(self, endpoint: Endpoint, settings: ZmqSettings) -> None:
        self.zmq = import_extra("zmq", "ZeroMQ", "zmq")
        self._endpoint = endpoint
        self._settings = settings
        self._context: Any = None
        self._authenticator: Any = None

    def open(self, kind: int, *, listens: bool) -> Any:
        """A socket of this kind that is bound or connected. Raises BrokerUnavailableError or ConfigError."""
        zmq, settings = self.zmq, self._settings
        if self._context is None:
            self._context = zmq.Context()
        made = self._context.socket(kind)
        try:
            made.set_hwm(settings.buffer)
            if kind == zmq.ROUTER:
                made.sndhwm = 0  # answers, as many as senders wait for; a ROUTER drops what is above its mark
            if kind == zmq.DEALER:
                made.rcvhwm = 0
            made.maxmsgsize = settings.max_message_bytes
            made.linger = int(settings.linger_s * 1000)
            made.sndtimeo = int(settings.send_timeout_s * 1000)
            made.reconnect_ivl, made.reconnect_ivl_max = RECONNECT_MS
            made.handshake_ivl = _HANDSHAKE_MS
            made.heartbeat_ivl = int(settings.heartbeat_s * 1000)
            made.heartbeat_timeout = int(settings.heartbeat_s * 2000)
            made.heartbeat_ttl = int(settings.heartbeat_s * 2000)
            made.ipv6 = ":" in self._endpoint.host
            if settings.socket_buffer_bytes is not None:
                made.sndbuf = made.rcvbuf = settings.socket_buffer_bytes
            if kind in (zmq.PUSH, zmq.DEALER):
                made.immediate = True  # nothing waits for a peer that may never come
            binds = settings.binds(listens=listens)
            self._secure(made, binds)
            if binds:
                self._endpoint.check_exposure(
                    allow="set curve_key_file and curve_clients_folder, or add insecure=true",
                    insecure=settings.insecure or settings.curve_clients_folder is not None,
                )
                made.bind(self._address(to_bind=True))
            else:
                made.connect(self._address(to_bind=False))
        except zmq.ZMQError as error:
            made.close(0)
            raise self._explained(error, "bound" if settings.binds(listens=listens) else "connected to") from error
        except BaseException:
            made.close(0)
            raise
        return made

    def close(self) -> None:
        """Wait, at most the time to linger, until sent messages are transmitted. The sockets are closed already."""
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        if self._context is not None:
            self._context.term()

    def _address(self, *, to_bind: bool) -> str:
        endpoint = self._endpoint
        if endpoint.transport == "ipc":
            return f"ipc://{endpoint.path}"
        host = endpoint.host
        if to_bind and host != "*":
            # ZeroMQ binds interfaces and numeric addresses, not names.
            with contextlib.suppress(OSError):
                host = str(socket.getaddrinfo(host, endpoint.port, type=socket.SOCK_STREAM)[0][4][0])
        return f"tcp://[{host}]:{endpoint.port}" if ":" in host else f"tcp://{host}:{endpoint.port}"

    def _secure(self, made: Any, binds: bool) -> None:
        settings = self._settings
        if settings.curve_key_file is None:
            return
        if not self.zmq.has("curve"):
            raise ConfigError("this libzmq was built without CURVE: install another one, or omit curve_key_file")
        made.curve_publickey, secret = self._certificate(settings.curve_key_file)
        if secret is None:
            raise ConfigError(f"curve_key_file={settings.curve_key_file} has no secret key: give the .key_secret file")
        made.curve_secretkey = secret
        if binds:
            if settings.curve_server_file is not None:
                raise ConfigError("curve_server_file is for the side that connects; this one binds the address")
            made.curve_server = True
            if settings.curve_clients_folder is not None:
                self._admit_only(made, settings.curve_clients_folder)
            return
        if settings.curve_clients_folder is not None:
            raise ConfigError("curve_clients_folder is for the side that binds; this one connects to the address")
        if settings.curve_server_file is None:
            raise ConfigError(
                "curve_key_file needs curve_server_file on the side that connects: the other's public key"
            )
        made.curve_serverkey, _ = self._certificate(settings.curve_server_file)

    def _admit_only(self, made: Any, folder: str) -> None:
        if not Path(folder).is_dir():
            raise ConfigError(f"curve_clients_folder={folder} is not a folder")
        if self._authenticator is None:
            thread = importlib.import_module("zmq.auth.thread")
            self._authenticator = thread.ThreadAuthenticator(self._context)
            self._authenticator.start()
        self._authenticator.configure_curve(domain=_DOMAIN, location=folder)
        made.zap_domain = _DOMAIN.encode()

    def _certificate(self, file: str) -> tuple[bytes, bytes | None]:
        auth = importlib.import_module("zmq.auth")
        try:
            public, secret = auth.load_certificate(file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the CURVE certificate {file} cannot be loaded: {error}") from error
        return public, secret

    def _explained(self, error: Any, what: str) -> BrokerUnavailableError | ConfigError:
        shown = self._endpoint.shown
        if error.errno in _PASSING:
            return BrokerUnavailableError(f"{shown} cannot be {what}: {error.strerror}. Another process may use it")
        return ConfigError(f"{shown} cannot be {what}: {error.strerror}. Check the address")
