"""`open_queue`: from a URL to a queue."""

from __future__ import annotations

from typing import Final

from penstock.abc import Channel, Queue
from penstock.errors import ConfigError
from penstock.streams.backend_url import Setting, name_in_url
from penstock.streams.schemes import QUEUES, opener, scheme_of
from penstock.streams.url import without_password

_PARTS: Final = ("name", "features", "receive", "settle", "send", "close")


def open_queue(url: str, **options: Setting) -> Queue:
    """Open the queue at a URL: `memory:jobs` is one in this process; other packages add other schemes.

    `options` are the settings of its scheme, which may also stand in the URL. UrlError names the installed schemes;
    ConfigError names an option that the queue does not have.
    """
    queue: Queue = opener(QUEUES, without_password(url), "a queue")(url, options)
    return queue


def as_queue(given: object) -> str | Queue | None:
    """The argument if it is a queue or the URL of one; None for a topic, whose name has no colon.

    UrlError for a URL of an unknown scheme, ConfigError for an object with only parts of a queue.
    """
    if isinstance(given, str) and scheme_of(given):
        opener(QUEUES, without_password(given), "a queue")
        return given
    if isinstance(given, Queue):
        return given
    if callable(getattr(given, "receive", None)):
        missing = [name for name in _PARTS if not hasattr(given, name)]
        raise ConfigError(f"{given!r} is not a queue: it has no {', '.join(missing)}. See penstock.abc.Queue")
    return None


def queue_name(queue: str | Queue | Channel) -> str:
    """The name of a queue or channel, or the last part of its URL, in characters that the name of a topic may have."""
    return name_in_url(queue if isinstance(queue, str) else queue.name) or "queue"
