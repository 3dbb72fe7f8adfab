"""Header names that are not UTF-8: Kafka allows any bytes, and confluent-kafka returns text.

The first call of `Message.headers` for such a record raises SystemError. Later calls return pairs whose name is a null
pointer, and reading it crashes the process. So callers catch `UNREADABLE` and repair the message once with `mend`.
Pairs without a name are recognised through the garbage collector, which skips null pointers.

The error holds the bytes of the first such name. Those of a second one in the same record are lost: that header keeps
its value under `UNKNOWN_HEADER`. librdkafka cuts any name at its first zero byte.

Only one thread may make the first call for a message. In a consumer, that is the thread that admits records.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import Message

from penstock.errors import DeliveryError
from penstock.model import UNKNOWN_HEADER, Headers, header_name

logger = logging.getLogger(__name__)

UNREADABLE: Final = (SystemError, UnicodeDecodeError)
"""What `Message.headers` may raise. In optimized bytecode, a later instruction may raise it instead of the call."""

_MOST_TOPICS: Final = 1_000
_told: set[str | None] = set()
"""Topics that were logged."""


def mend(message: Message, error: BaseException) -> None:
    """Repair the headers of a message. Raises the error again if it has another cause."""
    pairs: Any = message.headers()
    first = _name_in(error)
    if pairs is None:  # the client kept none
        mended: list[tuple[str, bytes | None]] = [(UNKNOWN_HEADER if first is None else header_name(first), None)]
    elif all(map(_has_name, pairs)):
        raise error
    else:
        mended = []
        for pair in pairs:
            if _has_name(pair):
                mended.append(pair)
                continue
            mended.append((UNKNOWN_HEADER if first is None else header_name(first), pair[1]))
            first = None
    message.set_headers(mended)  # type: ignore[arg-type]  # a value may be None
    _tell(message)


def all_headers(messages: Sequence[Message]) -> Sequence[Any]:
    """For each message, a value that is true if the message has headers."""
    try:
        return list(map(Message.headers, messages))
    except UNREADABLE as error:
        raised = error
    return [_has_headers(message, raised) for message in messages]


def _has_headers(message: Message, raised: BaseException) -> bool:
    """Whether it has headers, repaired if necessary. `raised` belongs to the first message that needs it."""
    try:
        # Through map, the error is raised here and not later.
        (pairs,) = map(Message.headers, (message,))
    except UNREADABLE as error:
        mend(message, error)
        return True
    if pairs and not all(map(_has_name, pairs)):
        mend(message, raised)
    return bool(pairs)


def _has_name(pair: object) -> bool:
    return len(gc.get_referents(pair)) == 2


def sendable(headers: Headers) -> list[tuple[str, str | bytes | None]]:
    """The headers for the client. Raises DeliveryError for a name that is not UTF-8, which would crash the client."""
    for name, _ in headers:
        if not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise DeliveryError(f"the header name {name!r} cannot be sent: {error}") from error
    return list(headers)


def _name_in(error: BaseException) -> bytes | None:
    """The first name that could not be decoded; the errors of further names wrap its error."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, UnicodeDecodeError):
            return bytes(found.object)
        found = found.__cause__
    return None


def _tell(message: Message) -> None:
    topic = message.topic()
    if topic in _told or len(_told) >= _MOST_TOPICS:
        return
    _told.add(topic)
    logger.warning(
        "topic %r, partition %s, offset %s: a header name is not UTF-8 and is returned with \\xNN in it; "
        "a second one in the same record is called %s. This is logged once per topic",
        topic,
        message.partition(),
        message.offset(),
        UNKNOWN_HEADER,
    )
