"""The `--url` of every command, and connecting to what it names."""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.errors import ConfigError, DeliveryError

if TYPE_CHECKING:
    from penstock.model import Position
    from penstock.streams import Connection

DEFAULT_URL: Final = "kafka://127.0.0.1:9092"
INTERRUPTED_FLUSH_S: Final = 3.0

Url = Annotated[
    str,
    typer.Option(
        envvar="PENSTOCK_URL",
        metavar="URL",
        help="The stream: kafka://HOST:PORT for a running broker, with ?config=FILE for its settings of TLS and login; "
        "log:FOLDER to have the folder's broker started.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="A setting by Kafka's name; may be repeated."),
]


def examples(*lines: str) -> str:
    """The examples at the end of a command's help, each on a line of its own."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def hush() -> None:
    """Keep the library's log off the terminal: what matters comes as an error, and librdkafka has much to tell."""
    library = logging.getLogger("penstock")
    library.addHandler(logging.NullHandler())
    library.propagate = False


@contextmanager
def open_stream(url: str, **options: Any) -> Iterator[Connection]:
    """Connect for as long as the block lasts. Who is interrupted does not wait long for a broker that is away."""
    from penstock.streams import connect

    hush()
    stream = connect(url, client_id="penstock-cli", **options)
    try:
        yield stream
    except (KeyboardInterrupt, SystemExit):
        with contextlib.suppress(DeliveryError):  # the command has told how many were acknowledged
            stream.close(timeout=INTERRUPTED_FLUSH_S)
        raise
    finally:
        stream.close()


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE options as a dict."""
    found = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE, such as retention.ms=3600000", param_hint=option)
        found[name.strip()] = value.strip()
    return found


def position(text: str, option: str) -> Position:
    """What was written for a position; usage is explained when it cannot be understood."""
    from penstock.model import Position

    try:
        return Position.parse(text, datetime.datetime.now(datetime.UTC))
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
