"""Names of headers that are no UTF-8: Kafka lets them be any bytes, and confluent-kafka gives text.

Asked for the headers of such a record for the first time, `Message.headers` raises SystemError; from then on it gives
pairs that lack their name in memory, and end the process when that is looked at. So whoever asks for headers catches
`UNREADABLE` and has them mended, once; after that the message is like any other. What no name was found for is known
from the garbage collector, which alone passes over what is not there.

The error carries the bytes of the first such name. Those of a second one in the same record are nowhere to be had: that
header keeps its value under `UNKNOWN_NAME`. Of any name, librdkafka gives what stands before its first zero byte.

Only one thread may ask for the headers of a message that nobody has asked for them before. In a consumer that is the
one that admits records; workers come later.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import Message

from penstock.errors import DeliveryError
from penstock.model import Headers, header_name

logger = logging.getLogger(__name__)

UNKNOWN_NAME: Final = "penstock-unknown-name"
"""The header of this name had one that was no UTF-8, and was not the first such in its record."""

UNREADABLE: Final = (SystemError, UnicodeDecodeError)
"""What asking a message for its headers may raise. Inside code that the interpreter has sped up, not the call itself
does, but one of the next."""

_MOST_TOPICS: Final = 1_000
_told: set[str | None] = set()
"""Topics of which it has been logged."""


def mend(message: Message, error: BaseException) -> None:
    """Give the message headers that can be read. Raises the error again if it was not about them."""
    pairs: Any = message.headers()
    first = _name_in(error)
    if pairs is None:  # the client kept nothing
        mended: list[tuple[str, bytes | None]] = [(UNKNOWN_NAME if first is None else header_name(first), None)]
    elif all(map(_has_name, pairs)):
        raise error
    else:
        mended = []
        for pair in pairs:
            if _has_name(pair):
                mended.append(pair)
                continue
            mended.append((UNKNOWN_NAME if first is None else header_name(first), pair[1]))
            first = None
    message.set_headers(mended)  # type: ignore[arg-type]  # a value may be None
    _tell(message)


def all_headers(messages: Sequence[Message]) -> Sequence[Any]:
    """The headers of each message, or something else that is true if it has any."""
    try:
        return list(map(Message.headers, messages))
    except UNREADABLE as error:
        raised = error
    return [_has_headers(message, raised) for message in messages]


def _has_headers(message: Message, raised: BaseException) -> bool:
    """Whether it has any; they are mended if they must be. `raised` is about the first for which that is so."""
    try:
        # Through map, what the client has set is raised here and not later.
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
    """The headers as the client takes them. DeliveryError for a name that is no UTF-8, at which it would crash."""
    for name, _ in headers:
        if not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise DeliveryError(f"the header name {name!r} cannot be sent: {error}") from error
    return list(headers)


def _name_in(error: BaseException) -> bytes | None:
    """The name that could not be decoded: the first, for each further one wraps the error about it in another."""
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
        "topic %r, partition %s, offset %s: the name of a header is no UTF-8, so it is given as text with \\xNN in it; "
        "a second one in the same record is called %s. This is not said again of this topic",
        topic,
        message.partition(),
        message.offset(),
        UNKNOWN_NAME,
    )
