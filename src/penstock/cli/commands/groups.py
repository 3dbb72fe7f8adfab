"""`penstock groups`: the groups of a stream, their progress, and moving them."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Mapping
from typing import Annotated

import typer

from penstock.cli.options import DEFAULT_URL, AsJson, Checkpoints, ListByDefault, Url, examples
from penstock.cli.output import confirm, print_json, say
from penstock.cli.stream import open_connection
from penstock.cli.tables import print_table
from penstock.errors import BrokerUnavailableError, ConfigError, GroupError
from penstock.model.administration import ANSWER_TIMEOUT_S, GroupDescription
from penstock.model.text import count_text, printable
from penstock.observe import group_moves
from penstock.observe.facts import GroupFacts, ReaderFacts
from penstock.observe.group_moves import Target
from penstock.observe.library_groups import check_given, opened_stores
from penstock.observe.looking import Looker
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
        say("There are no groups yet. Reading creates one: penstock consume TOPIC --group NAME")
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows], numbers=["members", "lag", "unread"])


@app.command("describe", epilog=examples("penstock groups describe billing", "penstock groups describe billing --json"))
def describe(group: Group, url: Url = DEFAULT_URL, checkpoints: Checkpoints = None, as_json: AsJson = False) -> None:
    """Show where a group's progress is kept, its members, and its offsets in every partition of its topics."""
    with open_connection(url) as stream:
        facts = _look(stream, checkpoints).get(group)
        if facts is None:
            raise GroupError(f"there is no group {group!r}; list them with: penstock groups")
        kafka = _described_by_kafka(stream, group)
    hosts = {place: member.host for member in (kafka.members if kafka else ()) for place in member.assignment}
    progress = [_progress(each, hosts.get((each.topic, each.partition))) for each in facts.readers]
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
    not_read = f", {count_text(len(unread), 'partition')} not read yet ({facts.unread:,} records)" if unread else ""
    member_text = count_text(facts.members, "member")
    typer.echo(f"{printable(facts.name)}: {facts.state}, {member_text}, lag {facts.lag:,}{not_read}")
    typer.echo(printable(_kept_text(facts, kafka)))
    typer.echo("")
    if progress:
        numbers = ["partition", "committed", "end", "lag", "unread"]
        print_table(list(progress[0]), [list(row.values()) for row in progress], numbers=numbers)
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
        "penstock groups reset billing --checkpoints postgresql://db/shop --to earliest --execute",
    ),
)
def reset(
    group: Group,
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="earliest, latest, an offset (42), a time (2026-11-15T08:00), an age (-1h), milliseconds since 1970, "
            "or a number of records back or forward (-100, +100).",
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
    try:
        target = Target.parse(to, datetime.datetime.now(datetime.UTC))
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from error
    moved = None
    with open_connection(url) as stream, opened_stores(stream, checkpoints) as stores:
        groups = stream.group_admin()
        is_given = checkpoints is not None
        progress = group_moves.find_progress(groups, stores, group, is_given=is_given, may_be_new=bool(topic))
        moves = group_moves.plan_reset(stream.admin(), progress, target, topic or [], partition or [])
        group_moves.check_stopped(progress, on_wait=say)
        changed = sum(move.is_change for move in moves)
        if execute:
            moved = group_moves.reset(groups, progress, moves, round(1000 * time.time()))
    if as_json:
        print_json({"group": group, "executed": execute, "kept": progress.where, "partitions": moves})
    else:
        print_table(
            ["topic", "partition", "committed", "to", "by", "note"],
            [(move.topic, move.partition, move.committed, move.to, move.by, move.note) for move in moves],
            numbers=["partition", "committed", "to", "by"],
        )
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


def _look(stream: Connection, checkpoints: str | None) -> Mapping[str, GroupFacts]:
    check_given(stream, checkpoints)
    with contextlib.closing(Looker(stream, checkpoints=checkpoints, timeout_s=ANSWER_TIMEOUT_S)) as looker:
        snapshot = looker.look()
    if snapshot.problem is not None:
        raise BrokerUnavailableError(snapshot.problem)
    return snapshot.groups


def _described_by_kafka(stream: Connection, group: str) -> GroupDescription | None:
    """Kafka's description of a group; None for unknown groups, such as an app that reads a topic as a queue."""
    try:
        return stream.group_admin().describe(group)
    except GroupError:
        return None


def _progress(reader: ReaderFacts, host: str | None) -> dict[str, object]:
    return {
        "topic": reader.topic,
        "partition": reader.partition,
        "committed": reader.committed,
        "end": reader.end,
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
