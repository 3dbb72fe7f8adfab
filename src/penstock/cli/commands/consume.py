"""`penstock consume`: read topics, once or continuously, alone or as a member of a group."""

from __future__ import annotations

import re
import sys
import time
from enum import StrEnum
from typing import Annotated, Final

import typer

from penstock.cli.options import DEFAULT_URL, Url, examples
from penstock.cli.output import say
from penstock.cli.record_formats import FORMATS, Format
from penstock.cli.stream import check_is_topic, check_position, open_connection, position_in
from penstock.streams import Connection
from penstock.streams.aliases import current_topic

app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock consume orders",
    "penstock consume orders --from -15m --follow",
    "penstock consume orders --from 2026-11-15T08:00 --limit 10 --format json",
    "penstock consume orders --from 42 --partition 0",
    "penstock consume orders users --follow",
    "penstock consume --pattern 'orders\\..*' --follow",
    "penstock consume orders --group billing --follow",
)

_COMMIT_EVERY_S: Final = 1.0


class OutputFormat(StrEnum):
    text = "text"
    json = "json"
    raw = "raw"


@app.command("consume", epilog=EXAMPLES)
def consume(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC...", help="The topic to read, or several.", show_default=False)
    ] = None,
    url: Url = DEFAULT_URL,
    pattern: Annotated[
        str,
        typer.Option(
            metavar="REGEX",
            help="Read all topics whose whole name matches; with --follow, also those that are created later.",
        ),
    ] = "",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="earliest, latest, an offset (42, or in the system's own form: offset:1526919030474-0 of Redis), "
            "a time (2026-11-15T08:00, local unless it names a zone), an age "
            "(-30s, -15m, -1h, -7d), or milliseconds since 1970. With --group, where it starts if it has committed "
            "nothing: earliest or latest.",
        ),
    ] = "earliest",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new records, until interrupted.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="End after this many records.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="With --follow: end after this many seconds without a record.")
    ] = None,
    group: Annotated[
        str, typer.Option("--group", "-g", help="Read as a member of this group, and commit what was printed.")
    ] = "",
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
    ] = None,
    output: Annotated[
        OutputFormat,
        typer.Option(
            "--format",
            help="text: the topic if there may be several, partition:offset, time, key, value. json: one object per "
            "line. raw: one value per line.",
        ),
    ] = OutputFormat.text,
) -> None:
    """Read the records of topics, once or continuously.

    It ends at the current end, unless --follow is given. Reading without a group commits nothing and affects no other
    reader. An offset that has expired, or does not exist yet, is an error.
    """
    write = FORMATS[output.value]
    chosen = _chosen(topics or [], pattern)
    has_several = not isinstance(chosen, str)
    if has_several and output is OutputFormat.text:
        write = _with_topic(write)
    if has_several and partition:
        raise typer.BadParameter("it needs one topic", param_hint="--partition")
    if has_several and group:
        raise typer.BadParameter("a group reads one topic here: start one command for each", param_hint="--group")
    if timeout is not None and not follow:
        raise typer.BadParameter("it needs --follow; without, reading ends at the current end", param_hint="--timeout")
    if not group:
        check_position(start, "--from")
        with open_connection(url) as stream:
            where = position_in(stream, start)
            reader = stream.read(
                _resolved(stream, chosen),
                where,
                follow=follow,
                limit=limit,
                timeout_s=timeout,
                partitions=partition or None,
            )
            for record in reader:
                sys.stdout.buffer.write(write(record, stream.pointer_text))
                if follow and not reader.ready:
                    sys.stdout.buffer.flush()
        return
    if partition:
        raise typer.BadParameter("the group assigns the partitions: omit it", param_hint="--partition")
    if start not in ("earliest", "latest"):
        raise typer.BadParameter(
            "a group starts at its committed offsets, else at earliest or latest; move it with: penstock groups reset",
            param_hint="--from",
        )
    with open_connection(url) as stream:
        _consume_in_group(stream, str(_resolved(stream, chosen)), group, start, follow, limit, timeout, write)


def _chosen(topics: list[str], pattern: str) -> str | list[str] | re.Pattern[str]:
    if bool(topics) == bool(pattern):
        raise typer.BadParameter("name topics, or pass --pattern, and not both", param_hint="TOPIC...")
    if not pattern:
        for topic in topics:
            check_is_topic(topic)
        return topics[0] if len(topics) == 1 else topics
    try:
        return re.compile(pattern)
    except re.error as error:
        raise typer.BadParameter(f"{pattern!r} is not a regular expression: {error}", param_hint="--pattern") from error


def _with_topic(write: Format) -> Format:
    return lambda record, pointer_text: record.topic.encode() + b"  " + write(record, pointer_text)


def _resolved(stream: Connection, chosen: str | list[str] | re.Pattern[str]) -> str | list[str] | re.Pattern[str]:
    """The topics that these names refer readers to. A pattern matches topics, not aliases."""
    if isinstance(chosen, re.Pattern):
        return chosen
    found = []
    for name in [chosen] if isinstance(chosen, str) else chosen:
        found.append(current_topic(stream, name))
        if found[-1] != name:
            say(f"{name} refers to topic {found[-1]}.")
    return found[0] if isinstance(chosen, str) else found


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
    """Print the records of the assigned partitions, and commit those that were written out."""
    stream.admin().require(topic)
    with stream.read_as_member(
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
                sys.stdout.buffer.write(write(record, stream.pointer_text))
                if not reader.ready or time.monotonic() >= commit_s:
                    sys.stdout.buffer.flush()
                    reader.commit()
                    commit_s = time.monotonic() + _COMMIT_EVERY_S
            sys.stdout.buffer.flush()
        except (KeyboardInterrupt, SystemExit):
            sys.stdout.buffer.flush()
            reader.commit()
            raise
