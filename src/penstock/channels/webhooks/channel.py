"""`abc.Channel` that sends to every registered receiver: `webhooks:./webhooks.db`.

`send` returns when the records are stored in the file, on disk; a thread delivers them from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from penstock.abc import Clock, Feature, Features
from penstock.channels.http import messages
from penstock.channels.http.receiver import import_aiohttp
from penstock.channels.webhooks.delivery import DeliveryLoop
from penstock.channels.webhooks.registration import RegistrationServer
from penstock.channels.webhooks.registry import Registry
from penstock.channels.webhooks.settings import WebhooksSettings
from penstock.errors import ConfigError, ConnectionClosedError, UrlError
from penstock.model import NewRecord, Record
from penstock.model.clock import SystemClock
from penstock.streams.adapting.loop_thread import LoopThread
from penstock.streams.backend_url import name_in_url, parse_backend_url, settings_of

FEATURES: Final[Features] = frozenset({Feature.KEYS, Feature.HEADERS, Feature.ANSWERS})
_EVENT_HEADERS: Final = ("ce-type", "x-event-type", "event-type")
_START_S: Final = 30.0


def open_webhooks(url: str, options: Mapping[str, Any]) -> WebhooksChannel:
    """`webhooks:` URLs, as `penstock.streams.schemes` finds them."""
    return WebhooksChannel(*path_and_settings(url, options))


def path_and_settings(url: str, options: Mapping[str, Any]) -> tuple[str, WebhooksSettings]:
    """The path of the registry in a `webhooks:` URL, and the settings."""
    where = parse_backend_url(url, 1)  # a port, so that the error about a host is the one below
    if where.hosts or not where.path:
        raise UrlError(f"{where.shown!r} is not webhooks:FILE, such as webhooks:./webhooks.db")
    return where.path, settings_of(where, WebhooksSettings, options)


class WebhooksChannel:
    """`abc.Channel` and `abc.Acknowledging`, for sending only."""

    def __init__(self, path: str, settings: WebhooksSettings, clock: Clock | None = None) -> None:
        import_aiohttp()
        self._settings = settings
        self._clock = clock or SystemClock()
        self._name = name_in_url(path)
        self._event = _event_reader(settings)
        self._lock = threading.Lock()
        self._closed = False
        self._deliveries: DeliveryLoop | None = None
        self._server: RegistrationServer | None = None
        self.registry = Registry(path, self._clock)
        self._thread = LoopThread(f"penstock-http-{self._name}", f"the channel {self._name}", "open it again")
        try:
            self._thread.run(self._start(), _START_S)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return self._name

    @property
    def features(self) -> Features:
        return FEATURES

    def send(self, records: Sequence[NewRecord]) -> None:
        """Store records for the receivers. They are on disk when this returns."""
        self._check_open()
        if not records:
            return
        self.registry.add((messages.message_id(record), self._event(record), record) for record in records)
        assert self._deliveries is not None
        self._thread.loop.call_soon_threadsafe(self._deliveries.arrived.set)

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        self._check_open()
        raise ConfigError(f"{self._name} only sends: receive webhooks with http://HOST:PORT/PATH")

    def acknowledge(self, records: Sequence[Record]) -> None:
        self.listen(len(records), 0.0)

    def refuse(self, records: Sequence[Record], reason: str, *, again: bool) -> None:
        self.listen(len(records), 0.0)

    def close(self) -> None:
        """Stop sending. What is not delivered waits in the file."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._thread.close(self._stop())
        self.registry.close()

    async def _start(self) -> None:
        if self._settings.register is not None:
            self._server = RegistrationServer(self.registry, self._settings, self._clock)
            await self._server.start()
        self._deliveries = DeliveryLoop(self.registry, self._settings, self._clock)
        self._running = asyncio.create_task(self._deliveries.run())

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.close()
        if self._deliveries is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the channel {self._name} is closed: open it again")


def _event_reader(settings: WebhooksSettings) -> Callable[[NewRecord], str]:
    """The event type of a record; "" if it has none."""
    given = None if settings.event is None else messages.extractor(settings.event)
    from_value = messages.extractor("json:/type")

    def event(record: NewRecord) -> str:
        headers = {name.lower(): value or b"" for name, value in record.headers}
        if given is not None:
            found = given(lambda name: headers.get(name, b""), record.value or b"")
        else:
            found = next((headers[name] for name in _EVENT_HEADERS if headers.get(name)), None)
            if found is None:
                found = from_value(lambda name: b"", record.value or b"")
        return (found or b"").decode("utf-8", "replace")

    return event
