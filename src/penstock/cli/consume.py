"""`penstock consume`: read a topic, once or on and on, alone or as a member of a group."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.output import say
from penstock.cli.stream import DEFAULT_URL, Url, examples, open_stream, position

if TYPE_CHECKING:
    from penstock.cli.record_formats import Format
    from penstock.streams import Connection

EXAMPLES: Final = examples(
    "penstock consume orders",
    "penstock consume orders --from -15m --follow",
    "penstock consume orders --from 2026-11-15T08:00 --limit 10 --format json",
    "penstock consume orders --from 42 --partition 0",
    "penstock consume orders --group billing --follow",
)

_COMMIT_EVERY_S: Final = 1.0


class OutputFormat(StrEnum):
    text = "text"
    json = "json"
    raw = "raw"


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to read.")],
    url: Url = DEFAULT_URL,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="earliest, latest, an offset (42), a time (2026-11-15T08:00, local unless it names a zone), an age "
            "(-30s, -15m, -1h, -7d), or milliseconds since 1970. With --group, where it begins if it has committed "
            "nothing: earliest or latest.",
        ),
    ] = "earliest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until interrupted.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="End after so many records.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="With --follow: end when nothing has come for so many seconds.")
    ] = None,
    group: Annotated[
        str, typer.Option("--group", "-g", help="Read as a member of this group, and commit what was written out.")
    ] = "",
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
    ] = None,
    output: Annotated[
        OutputFormat,
        typer.Option(
            "--format",
            help="text: partition:offset, time, key, value. json: an object a line. raw: the values, a line each.",
        ),
    ] = OutputFormat.text,
) -> None:
    """Read the records of a topic, once or on and on.

    It ends at the present end, unless --follow is given. Reading alone commits nothing and disturbs nobody. An offset
    that is gone, or not there yet, is an error.
    """
    from penstock.cli.record_formats import FORMATS

    write = FORMATS[output.value]
    if timeout is not None and not follow:
        raise typer.BadParameter("it is for --follow; without, reading ends at the present end", param_hint="--timeout")
    if not group:
        where = position(start, "--from")
        with open_stream(url) as stream:
            reader = stream.read(
                _resolved(stream, topic),
                where,
                follow=follow,
                limit=limit,
                timeout=timeout,
                partitions=partition or None,
            )
            for record in reader:
                sys.stdout.buffer.write(write(record))
                if follow and not reader.ready:
                    sys.stdout.buffer.flush()
        return
    if partition:
        raise typer.BadParameter("a group shares out the partitions itself: leave it away", param_hint="--partition")
    if start not in ("earliest", "latest"):
        raise typer.BadParameter(
            "a group begins where it has committed, else at earliest or latest; move it with: penstock groups reset",
            param_hint="--from",
        )
    with open_stream(url) as stream:
        _consume_in_group(stream, _resolved(stream, topic), group, start, follow, limit, timeout, write)


def _resolved(stream: Connection, name: str) -> str:
    """The topic that this name leads readers to."""
    from penstock.streams.aliases import current_topic

    topic = current_topic(stream, name)
    if topic != name:
        say(f"{name} leads to topic {topic}.")
    return topic


def _consume_in_group(
    stream: Connection,
    topic: str,
    group: str,
    start: str,
    follow: bool,
    limit: int | None,
    timeout_s: float | None,
    write: Format,
) -> None:
    """Write the records of the group's share, and commit those that have left our hands."""
    from penstock.streams.kafka.group_reading import GroupReader

    stream.administration.require(topic)
    with GroupReader(
        stream.bootstrap,
        stream.options,
        group,
        topic,
        reset="latest" if start == "latest" else "earliest",
        follow=follow,
        limit=limit,
        timeout_s=timeout_s,
    ) as reader:
        commit_s = time.monotonic() + _COMMIT_EVERY_S
        try:
            for record in reader:
                sys.stdout.buffer.write(write(record))
                if not reader.ready or time.monotonic() >= commit_s:
                    sys.stdout.buffer.flush()
                    reader.commit()
                    commit_s = time.monotonic() + _COMMIT_EVERY_S
            sys.stdout.buffer.flush()
        except (KeyboardInterrupt, SystemExit):
            sys.stdout.buffer.flush()
            reader.commit()
            raise
