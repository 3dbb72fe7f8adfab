"""`penstock groups`: the groups of a stream, their progress, and moving them."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import typer

from penstock.abc import Feature
from penstock.cli.options import DEFAULT_URL, AsJson, Checkpoints, ListByDefault, Url, examples
from penstock.cli.output import confirm, print_json, say
from penstock.cli.stream import open_connection
from penstock.cli.tables import print_table
from penstock.errors import BrokerUnavailableError, ConfigError, GroupError
from penstock.model.administration import ANSWER_TIMEOUT_S, GroupDescription
from penstock.model.pointer_forms import PointerText, is_named_pointer, pointer_value
from penstock.model.text import count_text, duration_text, printable
from penstock.observe import group_moves
from penstock.observe.facts import GroupFacts, ReaderFacts
from penstock.observe.group_moves import Move, Target
from penstock.observe.library_groups import check_given, default_store, no_groups_text, opened_stores
from penstock.observe.stream_observer import StreamObserver
from penstock.streams import Connection

app = typer.Typer(
    name="groups", cls=ListByDefault, rich_markup_mode=None, help="List, describe, reset and delete groups."
)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group, from `penstock groups list`.")]


@app.command("list", epilog=examples("penstock groups", "penstock groups list --json"))
def list_groups(url: Url = DEFAULT_URL, checkpoints: Checkpoints = None, as_json: AsJson = False) -> None:
    """List the groups, with their members and their lag."""
    with open_connection(url) as stream:
        found = _look(stream, checkpoints)
        nothing = no_groups_text(stream, checkpoints)
    rows = [
        {
            "group": group.name,
            "state": group.state,
            "members": group.members,
            "lag": group.lag,
            "unread": group.unread,
            "kept": ", ".join(group.stores) or "kafka group",
        }
        for group in found.values()
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        say(nothing)
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows], numbers=["members", "lag", "unread"])
        _say_if_not_counted(found.values())


@app.command("describe", epilog=examples("penstock groups describe billing", "penstock groups describe billing --json"))
def describe(group: Group, url: Url = DEFAULT_URL, checkpoints: Checkpoints = None, as_json: AsJson = False) -> None:
    """Show where a group's progress is kept, its members, and its offsets in every partition of its topics."""
    with open_connection(url) as stream:
        facts = _look(stream, checkpoints).get(group)
        if facts is None:
            raise GroupError(f"there is no group {group!r}; {_no_such_group(stream, checkpoints)}")
        kafka = _described_by_kafka(stream, group)
    hosts = {place: member.host for member in (kafka.members if kafka else ()) for place in member.assignment}
    progress = [_progress(each, hosts.get((each.topic, each.partition)), stream.pointer_text) for each in facts.readers]
    if as_json:
        members = [
            {
                "id": member.id,
                "client_id": member.client_id,
                "host": member.host,
                "assignment": [{"topic": topic, "partition": partition} for topic, partition in member.assignment],
            }
            for member in (kafka.members if kafka else ())
        ]
        print_json(
            {
                "group": facts.name,
                "state": facts.state,
                "assignor": kafka.assignor if kafka else "",
                "lag": facts.lag,
                "unread": facts.unread,
                "checkpoints": facts.stores,
                "members": members,
                "partitions": progress,
            }
        )
        return
    unread = [each for each in facts.readers if each.committed is None]
    how_many = "" if facts.unread is None else f" ({count_text(facts.unread, 'record')})"
    not_read = f", {count_text(len(unread), 'partition')} not read yet{how_many}" if unread else ""
    member_text = count_text(facts.members, "member")
    lag = "unknown" if facts.lag is None else f"{facts.lag:,}"
    waiting = "" if facts.is_counted or facts.lag_s is None else f", {duration_text(facts.lag_s)} behind"
    typer.echo(f"{printable(facts.name)}: {facts.state}, {member_text}, lag {lag}{waiting}{not_read}")
    typer.echo(printable(_kept_text(facts, kafka)))
    typer.echo("")
    if progress:
        numbers = ["partition", "committed", "end", "lag", "unread"]
        print_table(list(progress[0]), [list(row.values()) for row in progress], numbers=numbers)
        _say_if_not_counted([facts])
    else:
        typer.echo("It has committed nothing and reads no partition.")


@app.command("delete", epilog=examples("penstock groups delete billing --yes"))
def delete(
    group: Group,
    url: Url = DEFAULT_URL,
    checkpoints: Checkpoints = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a group: its checkpoints, and its committed offsets. It must have no members."""
    with open_connection(url) as stream, opened_stores(stream, checkpoints) as stores:
        groups = stream.group_admin()
        progress = group_moves.find_progress(groups, stores, group, is_given=checkpoints is not None)
        group_moves.check_stopped(progress, on_wait=say)
        if not yes:
            question = f"Forget {group} in {len(progress.starts)} partitions: {progress.where}?"
            confirm(question, "Nothing was deleted.")
        where = group_moves.delete(groups, progress)
    say(f"Deleted group {group}: {where}.")


@app.command(
    "reset",
    epilog=examples(
        "penstock groups reset billing --to earliest",
        "penstock groups reset billing --topic orders --to -1h --execute",
        "penstock groups reset billing --topic orders --partition 0 --to 42 --execute",
        "penstock groups reset billing --to -100 --execute",
        "penstock groups reset billing --to offset:1526919030474-0 --execute",
        "penstock groups reset billing --checkpoints postgresql://db/shop --to earliest --execute",
    ),
)
def reset(
    group: Group,
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="earliest, latest, an offset (42, or in the system's own form: offset:1526919030474-0 of Redis), a "
            "time (2026-11-15T08:00), an age (-1h), milliseconds since 1970, or a number of records back or forward "
            "(-100, +100).",
        ),
    ],
    url: Url = DEFAULT_URL,
    checkpoints: Checkpoints = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic; may be repeated. Default: all that it reads.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it. Without this option, only show what would be done.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Move a group to another position. It must have no members: stop them first.

    An app continues at its checkpoints: these are moved, and with them the offsets that Kafka shows for it.
    """
    moved = None
    if not is_named_pointer(to.strip()):
        _target(to, int, is_counted=True)  # a mistake is told before connecting
    with open_connection(url) as stream, opened_stores(stream, checkpoints) as stores:
        is_counted = Feature.OFFSETS in stream.features
        target = _target(to, stream.parse_pointer, is_counted=is_counted)
        groups = stream.group_admin()
        is_given = checkpoints is not None
        progress = group_moves.find_progress(groups, stores, group, is_given=is_given, may_be_new=bool(topic))
        moves = group_moves.plan_reset(
            stream.admin(), progress, target, topic or [], partition or [], is_counted=is_counted
        )
        group_moves.check_stopped(progress, on_wait=say)
        changed = sum(move.is_change for move in moves)
        if execute:
            moved = group_moves.reset(groups, progress, moves, round(1000 * time.time()))
    rows = [_move(move, stream.pointer_text) for move in moves]
    if as_json:
        print_json({"group": group, "executed": execute, "kept": progress.where, "partitions": rows})
    else:
        columns = ["topic", "partition", "committed", "to", "by", "note"]
        print_table(columns, [[row[name] for name in columns] for row in rows], numbers=columns[1:5])
    if moved is not None:
        say(str(moved))
        if not moved.partitions:
            raise typer.Exit(1)
    elif changed:
        say(
            f"Nothing was moved yet: {count_text(changed, 'partition')} would be"
            f"{f', in {progress.where}' if progress.where else ''}. Add --execute to do it."
        )
    else:
        say("There is nothing to move.")


def _say_if_not_counted(groups: Iterable[GroupFacts]) -> None:
    if any(each.lag is None or each.unread is None for each in groups):
        say(
            "Pointers of this stream do not count records, so the lag in records is unknown. `penstock lag` shows it "
            "in time."
        )


def _target(to: str, parse_pointer: Callable[[str], int], *, is_counted: bool) -> Target:
    try:
        return Target.parse(to, datetime.datetime.now(datetime.UTC), parse_pointer, is_counted=is_counted)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from error


def _move(move: Move, pointer_text: PointerText) -> dict[str, object]:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "committed": None if move.committed is None else pointer_value(move.committed, pointer_text),
        "to": pointer_value(move.to, pointer_text),
        "by": move.by,
        "note": move.note,
        "again": move.again,
    }


def _no_such_group(stream: Connection, checkpoints: str | None) -> str:
    if checkpoints is None and default_store(stream) is None:
        return no_groups_text(stream, checkpoints)
    return "list them with: penstock groups"


def _look(stream: Connection, checkpoints: str | None) -> Mapping[str, GroupFacts]:
    check_given(stream, checkpoints)
    with contextlib.closing(StreamObserver(stream, checkpoints=checkpoints, timeout_s=ANSWER_TIMEOUT_S)) as observer:
        snapshot = observer.look()
    if snapshot.problem is not None:
        raise BrokerUnavailableError(snapshot.problem)
    return snapshot.groups


def _described_by_kafka(stream: Connection, group: str) -> GroupDescription | None:
    """Kafka's description of a group; None for unknown groups, such as an app that reads a topic as a queue."""
    try:
        return stream.group_admin().describe(group)
    except GroupError:
        return None


def _progress(reader: ReaderFacts, host: str | None, pointer_text: PointerText) -> dict[str, object]:
    return {
        "topic": reader.topic,
        "partition": reader.partition,
        "committed": None if reader.committed is None else pointer_value(reader.committed, pointer_text),
        "end": pointer_value(reader.end, pointer_text),
        "lag": reader.lag,
        "unread": reader.unread if reader.committed is None else None,
        "member": reader.member,
        "host": host,
    }


def _kept_text(facts: GroupFacts, kafka: GroupDescription | None) -> str:
    if facts.stores:
        return f"Continues at its checkpoints in {', '.join(facts.stores)}."
    if kafka is not None and kafka.is_checkpointed:
        return (
            "Belongs to an app whose checkpoints were not found, so these offsets may be old: name its store with "
            "--checkpoints."
        )
    return "Continues at its committed offsets in Kafka."
