"""Connect to the stream of `--url`."""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer

from penstock.cli.output import say
from penstock.errors import ConfigError, DeliveryError
from penstock.model import Position
from penstock.model.pointer_forms import is_named_pointer, parse_position
from penstock.streams import Connection
from penstock.streams.connecting import check_url, connect_for
from penstock.streams.schemes import scheme_of
from penstock.streams.url import without_password

INTERRUPTED_FLUSH_S: Final = 3.0


def silence_log() -> None:
    """Keep the library's log off the terminal: problems are reported as errors, and librdkafka logs a lot."""
    library = logging.getLogger("penstock")
    library.addHandler(logging.NullHandler())
    library.propagate = False
    stalls = logging.getLogger("penstock.streams.kafka.producing.stalls")
    if not stalls.handlers:
        stalls.addHandler(_StalledNotice())


class _StalledNotice(logging.Handler):
    """Reports on the terminal that a broker acknowledges nothing, which would look like a hanging command."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


@contextmanager
def open_connection(url: str, **options: Any) -> Iterator[Connection]:
    """Connect while the block lasts. After an interrupt it does not wait long for a broker that is away."""
    silence_log()
    stream = connect_for(url, client_id="penstock-cli", **options)
    try:
        yield stream
    except (KeyboardInterrupt, SystemExit):
        with contextlib.suppress(DeliveryError):  # the command has printed how many were acknowledged
            stream.close(timeout_s=INTERRUPTED_FLUSH_S)
        raise
    finally:
        stream.close()


def check_is_topic(text: str) -> None:
    """Raise UrlError or BadParameter, which say what to do, for a URL in the place of a topic's name."""
    if scheme_of(text):
        check_url(text)
        raise typer.BadParameter(
            f"{without_password(text)} is the URL of a stream: give it as --url, and here the name of a topic",
            param_hint="TOPIC",
        )


def check_position(text: str, option: str) -> None:
    """Raise BadParameter for a text that no stream reads as a position."""
    if not is_named_pointer(text.strip()):
        position(text, option)


def position_in(stream: Connection, text: str) -> Position:
    """A position, or `offset:` and a pointer in the stream's own form. Raises ConfigError."""
    return parse_position(text, datetime.datetime.now(datetime.UTC), stream.parse_pointer)


def position(text: str, option: str) -> Position:
    """The position of an option. Raises BadParameter for a bad one."""
    try:
        return Position.parse(text, datetime.datetime.now(datetime.UTC))
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
