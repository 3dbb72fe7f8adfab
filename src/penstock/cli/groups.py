"""`penstock groups`: who reads, how far they have come, and moving them."""

from __future__ import annotations

import datetime
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.default_command import ListByDefault
from penstock.cli.output import count_text, print_json, print_table, say
from penstock.cli.stream import DEFAULT_URL, AsJson, Url, examples, open_stream
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.streams import Connection
    from penstock.streams.kafka.groups import GroupAdministration

app = typer.Typer(cls=ListByDefault, rich_markup_mode=None, help="List, describe, reset and delete groups.")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group; `penstock groups list` has them.")]


def administration(stream: Connection) -> GroupAdministration:
    from penstock.streams.kafka.groups import GroupAdministration

    return GroupAdministration(stream.administration)


@app.command("list", epilog=examples("penstock groups", "penstock groups list --json"))
def list_groups(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the groups, with their members and how far they are behind."""
    with open_stream(url) as stream:
        groups = administration(stream)
        found = [groups.describe(group.name) for group in groups.all()]
    rows = [
        {"group": group.name, "state": group.state, "members": len(group.members), "lag": group.lag} for group in found
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        say("There are no groups yet. One is made by reading with it: penstock consume TOPIC --group NAME")
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows], numbers=["members", "lag"])


@app.command("describe", epilog=examples("penstock groups describe billing", "penstock groups describe billing --json"))
def describe(group: Group, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a group's members, what each of them reads, and for every partition committed offset, end and lag."""
    with open_stream(url) as stream:
        found = administration(stream).describe(group)
    progress = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "committed": each.committed,
            "end": each.end,
            "lag": each.lag,
            "member": each.member.client_id if each.member else None,
            "host": each.member.host if each.member else None,
        }
        for each in found.progress
    ]
    if as_json:
        members = [
            {
                "id": member.id,
                "client_id": member.client_id,
                "host": member.host,
                "assignment": [{"topic": topic, "partition": partition} for topic, partition in member.assignment],
            }
            for member in found.members
        ]
        print_json(
            {
                "group": found.name,
                "state": found.state,
                "assignor": found.assignor,
                "lag": found.lag,
                "members": members,
                "partitions": progress,
            }
        )
        return
    typer.echo(f"{found.name}: {found.state}, {count_text(len(found.members), 'member')}, lag {found.lag:,}")
    typer.echo("")
    if progress:
        numbers = ["partition", "committed", "end", "lag"]
        print_table(list(progress[0]), [list(row.values()) for row in progress], numbers=numbers)
    else:
        typer.echo("It has committed nothing and reads no partition.")


@app.command("delete", epilog=examples("penstock groups delete billing --yes"))
def delete(
    group: Group,
    url: Url = DEFAULT_URL,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget a group and what it has committed. It must have no members."""
    with open_stream(url) as stream:
        groups = administration(stream)
        found = groups.describe(group)
        if not yes:
            if not sys.stdin.isatty():
                raise typer.BadParameter("nobody can be asked here: add --yes to go on", param_hint="--yes")
            if not typer.confirm(f"Forget what {group} has committed in {len(found.progress)} partitions?", err=True):
                say("Nothing was deleted.")
                raise typer.Exit(1)
        groups.delete(group)
    say(f"Deleted group {group}.")


@app.command(
    "reset",
    epilog=examples(
        "penstock groups reset billing --to earliest",
        "penstock groups reset billing --topic orders --to -1h --execute",
        "penstock groups reset billing --topic orders --partition 0 --to 42 --execute",
        "penstock groups reset billing --to -100 --execute",
    ),
)
def reset(
    group: Group,
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="earliest, latest, an offset (42), a time (2026-11-15T08:00), an age (-1h), milliseconds since 1970, "
            "or so many records back or on (-100, +100).",
        ),
    ],
    url: Url = DEFAULT_URL,
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic; may be repeated. Else all that it has committed in.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it. Without this, only what would be done is shown.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Move a group to another position. It must have no members: stop them first."""
    from penstock.streams.kafka.moves import Target, moved_places, plan_moves

    try:
        target = Target.parse(to, datetime.datetime.now(datetime.UTC))
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from error
    with open_stream(url) as stream:
        groups = administration(stream)
        moves = plan_moves(stream.administration, groups, group, target, topic or [], partition or [])
        changed = moved_places(moves)
        if execute and changed:
            groups.move(group, changed)
    if as_json:
        print_json({"group": group, "executed": execute, "partitions": moves})
        return
    print_table(
        ["topic", "partition", "committed", "to", "by", "note"],
        [(move.topic, move.partition, move.committed, move.to, move.by, move.note) for move in moves],
        numbers=["partition", "committed", "to", "by"],
    )
    if execute:
        say(f"Moved {group} in {count_text(len(changed), 'partition')}.")
    elif changed:
        say(f"Nothing was moved yet: {count_text(len(changed), 'partition')} would be. Add --execute to do it.")
    else:
        say("There is nothing to move.")
