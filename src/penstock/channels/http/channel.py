"""`abc.Channel` on HTTP: `http://127.0.0.1:8080/hooks` listens there, or sends there.

**Listening** serves the path for webhooks of other programs. Each request becomes a record, and is answered once the
listener acknowledged or refused it. **Sending** posts each record to the URL. Which of the two a channel does is
decided by its first call.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.abc import Clock, Feature, Features
from penstock.channels.answers import Refusal
from penstock.channels.http.receiver import HttpReceiver
from penstock.channels.http.sender import HttpSender, request_target
from penstock.channels.http.settings import HttpSettings
from penstock.channels.receive_buffer import check_limit
from penstock.errors import ConfigError, ConnectionClosedError, UrlError
from penstock.model import NewRecord, Record
from penstock.model.clock import SystemClock
from penstock.streams.adapting.loop_thread import LoopThread
from penstock.streams.backend_url import BackendUrl, check_tls, name_in_url, parse_backend_url, settings_of

FEATURES: Final[Features] = frozenset({Feature.KEYS, Feature.HEADERS, Feature.ANSWERS})
_PORTS: Final = {"http": 80, "https": 443}


def open_http(url: str, options: Mapping[str, Any]) -> HttpChannel:
    """`http:` and `https:` URLs, as `penstock.streams.schemes` finds them."""
    where = parse_backend_url(url, _PORTS[url.partition(":")[0].strip().lower()])
    if len(where.hosts) != 1:
        raise UrlError(f"{where.shown!r} is not {where.scheme}://HOST:PORT/PATH")
    settings = settings_of(where, HttpSettings, options)
    check_tls(where, settings, "https", "cert_file", "key_file", "ca_file")
    return HttpChannel(where, settings, path=urlsplit(url.strip()).path)


class HttpChannel:
    """`abc.Channel` and `abc.Acknowledging` for one URL."""

    def __init__(self, url: BackendUrl, settings: HttpSettings, *, path: str, clock: Clock | None = None) -> None:
        """`path` is the URL's path, not decoded."""
        self._url = url
        self._settings = settings
        self._clock = clock or SystemClock()
        self._target = request_target(url, path, settings.query)
        self._name = name_in_url(path.rstrip("/")) or name_in_url(url.host.name)
        self._thread = LoopThread(f"penstock-http-{self._name}", f"the channel {self._name}", "open it again")
        self._lock = threading.Lock()
        self._receiver: HttpReceiver | None = None
        self._is_serving = False
        self._sender: HttpSender | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def features(self) -> Features:
        return FEATURES

    @property
    def repeat_window_s(self) -> float:
        """`abc.RecognisingRepeats`."""
        return self._settings.idempotency_window_s if self._settings.idempotency_keys else 0.0

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        check_limit(limit)
        receiver = self._open_receiver()
        if not self._is_serving:
            receiver.start()
            self._is_serving = True
        return receiver.records.take(limit, wait_s)

    def acknowledge(self, records: Sequence[Record]) -> None:
        self._open_receiver().settle(records, None)

    def refuse(self, records: Sequence[Record], reason: str, *, again: bool) -> None:
        self._open_receiver().settle(records, Refusal(reason, again))

    def remember(self, records: Sequence[Record]) -> None:
        """`abc.RecognisingRepeats`."""
        self._open_receiver().remember(records)

    def send(self, records: Sequence[NewRecord]) -> None:
        with self._lock:
            self._check_open()
            if self._receiver is not None:
                raise ConfigError(f"{self._url.shown} listens: open another channel to send")
            if self._sender is None:
                self._sender = HttpSender(self._url, self._target, self._settings, self._thread, self._clock)
            sender = self._sender
        if records:
            sender.send(records)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            receiver, sender = self._receiver, self._sender
        if receiver is not None:
            receiver.records.close()
            self._thread.close(receiver.close())
        elif sender is not None:
            self._thread.close(sender.close())
        else:
            self._thread.close()

    def _open_receiver(self) -> HttpReceiver:
        with self._lock:
            self._check_open()
            if self._sender is not None:
                raise ConfigError(f"{self._url.shown} sends: open another channel to listen")
            if self._receiver is None:
                self._receiver = HttpReceiver(self._name, self._url, self._settings, self._thread, self._clock)
            return self._receiver

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the channel {self._name} is closed: open it again")
