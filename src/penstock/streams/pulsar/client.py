"""Pulsar's own client: readers and producers, its log as a logger of Python, and its errors in our words."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import math
import os
import ssl
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from penstock.errors import (
    BrokerUnavailableError,
    ConnectionClosedError,
    InvalidTopicError,
    NotAllowedError,
    PenstockError,
    StreamError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import NewRecord
from penstock.streams.adapting.servers import import_extra
from penstock.streams.backend_url import BackendUrl, check_tls
from penstock.streams.forks import FORKS
from penstock.streams.pulsar.credentials import TOKEN_VARIABLE, credentials_of
from penstock.streams.pulsar.messages import entry_of, fields_of, ledger_of
from penstock.streams.pulsar.settings import TLS_SETTINGS, PulsarSettings
from penstock.streams.pulsar.web import PulsarWeb

logger = logging.getLogger(__name__)

TLS_SCHEME: Final = "pulsar+ssl"
DEFAULT_TENANT: Final = "public"
DEFAULT_NAMESPACE: Final = "default"
_WEB_PORT: Final = 8080
_TLS_WEB_PORT: Final = 8443
_LINE_CHARACTERS: Final = 2_000
_LEVEL_CHARACTERS: Final = 60
"""Within which a line of the client's log says its level."""
_ASKED_ABOUT: Final = "penstock-check-partition-0"
_PENDING_RECORDS: Final = 20_000
_REFUSED: Final = ("AuthenticationError", "ErrorGettingAuthenticationData")
_BACKLOG: Final = " Subscriptions have too much backlog: raise the backlog quota, or delete them"
_FINAL: Final = {
    "InvalidConfiguration": "",
    "UnsupportedVersionError": "",
    "IncompatibleSchema": " The topic has a schema that bytes do not fit: use another topic, or delete the schema",
    "TopicTerminated": " Nobody can append to it any more",
    "ProducerBlockedQuotaExceededError": _BACKLOG,
    "ProducerBlockedQuotaExceededException": _BACKLOG,
    "CryptoError": " Encrypted messages cannot be read or written here",
    "OperationNotSupported": "",
}
"""Errors that do not pass, and what to do about them."""


class PulsarClient:
    """A connection to a tenant's namespace: data by Pulsar's client, administration by its web service."""

    def __init__(self, url: BackendUrl, settings: PulsarSettings) -> None:
        self._pulsar = import_extra("pulsar", "Apache Pulsar", "pulsar")
        self._new_message = importlib.import_module("_pulsar").MessageBuilder
        if not (settings.admin_url or "").startswith("https:"):  # the web service uses them, too
            check_tls(url, settings, TLS_SCHEME, *TLS_SETTINGS)
        self.tenant, self.namespace = _namespace(url)
        self._url = url
        self._settings = settings
        self._credentials = credentials_of(url, settings)
        hosts = ",".join(map(str, url.hosts))
        self._service_url = f"{url.scheme}://{hosts}"
        self.where = f"Pulsar at {hosts}/{self.tenant}/{self.namespace}"
        self.web = PulsarWeb(
            settings.admin_url or _web_url(url),
            settings.timeout_s,
            self._credentials.web_headers,
            self._web_tls(),
        )
        self.path = f"persistent/{self.tenant}/{self.namespace}"
        """Of topics, in the web service."""
        self._lock = threading.Lock()
        self._client: Any = None
        self._closer: weakref.finalize[Any, Any] | None = None
        self._closed = False
        self._forks = FORKS.count

    def full_name(self, topic: str) -> str:
        return f"persistent://{self.tenant}/{self.namespace}/{topic}"

    def check_login(self) -> None:
        """Return once the broker has answered. It is asked about a partition, which it does not create."""
        with contextlib.suppress(UnknownTopicError):
            self._call(lambda client: client.get_topic_partitions(self.full_name(_ASKED_ABOUT)))

    def reader(self, topic: str, start: int, prefetch: int) -> Any:
        """A reader whose first message is in the entry of this pointer, or after it."""
        before = self._pulsar.MessageId(-1, ledger_of(start), entry_of(start) - 1, -1)
        compacted = self._settings.read_compacted
        return self._call(
            lambda client: client.create_reader(
                self.full_name(topic), before, receiver_queue_size=prefetch, is_read_compacted=compacted
            )
        )

    def producer(self, topic: str) -> Any:
        """A producer for `message_of`."""
        settings = self._settings
        compression = getattr(self._pulsar.CompressionType, _COMPRESSIONS[settings.compression])
        return self._call(
            lambda client: client.create_producer(
                self.full_name(topic),
                send_timeout_millis=math.ceil(1000 * settings.delivery_timeout_s),
                compression_type=compression,
                max_pending_messages=_PENDING_RECORDS,
                block_if_queue_full=True,
                batching_enabled=settings.batch_records > 1,
                batching_max_messages=max(2, settings.batch_records),  # fewer are refused
                batching_max_allowed_size_in_bytes=settings.batch_bytes,
                batching_max_publish_delay_ms=settings.linger_ms,
            )
        )

    def read(self, reader: Any, wait_ms: int) -> Any:
        """The next message of a reader; None if there is none within `wait_ms`."""
        try:
            return raw_reader(reader).read_next(wait_ms)
        except self._pulsar.Timeout:
            return None
        except self._pulsar.PulsarException as error:
            raise self.translated(error) from error

    def read_on(self, reader: Any, message: Any, take: Callable[[Any], bool]) -> None:
        """Pass this message, and those that arrived after it, to `take`, until it returns False or no message is
        left."""
        read_next = raw_reader(reader).read_next
        try:
            while take(message):
                message = read_next(0)
        except self._pulsar.Timeout:
            return
        except self._pulsar.PulsarException as error:
            raise self.translated(error) from error

    def has_more(self, reader: Any) -> bool:
        """Whether the broker has a message that the reader has not given."""
        try:
            return bool(reader.has_message_available())
        except self._pulsar.PulsarException as error:
            raise self.translated(error) from error

    def message_of(self, record: NewRecord) -> Any:
        """The message of a record, made without the checks of the client's Python part: they take twice as long."""
        message = self._new_message()
        if record.value is None:
            message.set_null_value()
        else:
            message.content(record.value)
        key, properties, event_ms = fields_of(record)
        if key is not None:
            message.partition_key(key)
        if properties is not None:
            for name, text in properties.items():
                message.property(name, text)
        if event_ms is not None:
            message.event_timestamp(event_ms)
        return message.build()

    def release(self, closable: Any) -> None:
        """Close a reader or a producer; one that is closed already, or cannot say goodbye, does no harm."""
        if self._forks != FORKS.count:
            return
        with contextlib.suppress(self._pulsar.PulsarException, ValueError):
            closable.close()

    def translated(self, error: Exception) -> PenstockError:
        """The error to raise for an error of the client."""
        return self.meaning(type(error).__name__, str(error).removeprefix("Pulsar error: "))

    def meaning(self, name: str, text: str) -> PenstockError:
        """What an error of the client means, by the name that its classes and results share."""
        if self._closed:
            return ConnectionClosedError(f"the connection to {self.where} is closed: connect again")
        if name in _REFUSED:
            return BrokerUnavailableError(
                f"{self.where} refused the login: {text}. Check the token, or user and password, of the URL, or "
                f"{TOKEN_VARIABLE}",
                retriable=False,
            )
        if name in ("AuthorizationError", "NotAllowedError"):
            return NotAllowedError(f"{self.where}: {text}. Grant this role the permission to produce and consume")
        if name == "TopicNotFound":
            return UnknownTopicError(f"{self.where}: {text}: create it with `penstock topics create`")
        if name == "InvalidTopicName":
            return InvalidTopicError(f"{self.where}: {text}")
        if name == "AlreadyClosed":
            return BrokerUnavailableError(f"{self.where}: {text}: the topic was closed or deleted meanwhile")
        if name in _FINAL:
            return StreamError(f"{self.where}: {text}.{_FINAL[name]}")
        return BrokerUnavailableError(f"{self.where} is unavailable: {text}. Is it running, and is the URL right?")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            closer, self._client = self._closer, None
        self.web.close()
        if closer is not None and self._forks == FORKS.count:
            closer()

    def _call(self, use: Any) -> Any:
        try:
            return use(self._opened())
        except self._pulsar.PulsarException as error:
            raise self.translated(error) from error

    def _opened(self) -> Any:
        with self._lock:
            if self._closed or self._forks != FORKS.count:
                raise ConnectionClosedError(f"the connection to {self.where} is closed: connect again")
            if self._client is None:
                self._client = self._connected()
                # An open client writes to the terminal when the interpreter ends, so it is closed before.
                self._closer = weakref.finalize(self, _close, self._client, self._pulsar.PulsarException, self._forks)
            return self._client

    def _connected(self) -> Any:
        settings, pulsar = self._settings, self._pulsar
        timeout_s = max(1, math.ceil(settings.timeout_s))
        return pulsar.Client(
            self._service_url,
            authentication=self._authentication(),
            operation_timeout_seconds=timeout_s,
            connection_timeout_ms=1000 * timeout_s,
            stats_interval_in_seconds=0,
            logger=LOG.for_client(pulsar),
            listener_name=settings.listener_name,
            tls_trust_certs_file_path=self._tls_ca(),
            tls_certificate_file_path=settings.tls_cert,
            tls_private_key_file_path=settings.tls_key,
            tls_allow_insecure_connection=not settings.tls_verify,
            tls_validate_hostname=settings.tls_check_hostname and settings.tls_verify,
        )

    def _authentication(self) -> Any:
        settings, who, pulsar = self._settings, self._credentials, self._pulsar
        if who.token is not None:
            return pulsar.AuthenticationToken(who.token)
        if who.user is not None:
            return pulsar.AuthenticationBasic(who.user, who.password)
        if settings.tls_cert is not None and settings.tls_key is not None:
            return pulsar.AuthenticationTLS(settings.tls_cert, settings.tls_key)
        return None

    def _tls_ca(self) -> str | None:
        return self._settings.tls_ca or self._credentials.tls_ca

    def _web_tls(self) -> ssl.SSLContext | None:
        settings = self._settings
        if not (settings.admin_url or _web_url(self._url)).startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=self._tls_ca())
            if settings.tls_cert is not None:
                context.load_cert_chain(settings.tls_cert, settings.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise BrokerUnavailableError(
                f"{self.where}: a certificate cannot be read: {error}", retriable=False
            ) from error
        context.check_hostname = settings.tls_check_hostname and settings.tls_verify
        if not settings.tls_verify:
            context.verify_mode = ssl.CERT_NONE
        return context


class ClientLog:
    """The log of Pulsar's client, as a logger of Python: a pipe, and a thread that reads it to the end of the process.

    The client would write to the terminal. Given a logger of Python, it calls that twice for each record, whatever the
    level. So it writes to a file, which is the pipe. All clients of a process share the log of the first one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: str | None = None

    def for_client(self, pulsar: Any) -> Any:
        """The `logger` to pass to a new client."""
        level = pulsar.LoggerLevel.Info if logger.isEnabledFor(logging.DEBUG) else pulsar.LoggerLevel.Warn
        with self._lock:
            if self._path is None:
                reading, writing = os.pipe()
                self._path = f"/dev/fd/{writing}"
                threading.Thread(target=_pass_on, args=(reading,), name="pulsar-log", daemon=True).start()
            return pulsar.FileLogger(level, self._path)


LOG: Final = ClientLog()


def _pass_on(reading: int) -> None:
    with os.fdopen(reading, "r", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.rstrip()[:_LINE_CHARACTERS]
            is_detail = any(mark in text[:_LEVEL_CHARACTERS] for mark in (" DEBUG ", " INFO "))
            # The client reports every broken connection as an error, and repairs it; we raise what it cannot repair.
            logger.log(logging.DEBUG if is_detail else logging.INFO, "%s", text)


def raw_reader(reader: Any) -> Any:
    """The reader that the client's one wraps: its messages are those of the C++ client, with the same methods."""
    return getattr(reader, "_reader", reader)


_kept = threading.local()


def keep_thread_state() -> None:
    """Keep Python's state of this thread, one of the client's own, until the thread ends.

    Called in each callback of the client. Otherwise Python makes such a state for every callback, and deletes it after
    it, which takes longer than all the rest.
    """
    if not hasattr(_kept, "is_kept"):
        _kept.is_kept = True
        ctypes.pythonapi.PyGILState_Ensure()


_COMPRESSIONS: Final = {"none": "NONE", "lz4": "LZ4", "zlib": "ZLib", "zstd": "ZSTD", "snappy": "SNAPPY"}


def _close(client: Any, kind: type[Exception], forks: int) -> None:
    if forks != FORKS.count:
        return
    try:
        client.close()
    except kind as error:
        logger.debug("Pulsar's client could not be closed well: %s", error)


def _namespace(url: BackendUrl) -> tuple[str, str]:
    path = url.path.strip("/")
    if not path:
        return DEFAULT_TENANT, DEFAULT_NAMESPACE
    parts = path.split("/")
    if len(parts) != 2 or not all(parts):
        raise UrlError(f"{url.shown!r}: {path!r} is not TENANT/NAMESPACE, such as public/default")
    return parts[0], parts[1]


def _web_url(url: BackendUrl) -> str:
    host = f"[{url.host.name}]" if ":" in url.host.name else url.host.name
    return f"https://{host}:{_TLS_WEB_PORT}" if url.scheme == TLS_SCHEME else f"http://{host}:{_WEB_PORT}"
