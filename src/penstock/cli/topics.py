"""`penstock topics`: what topics there are, what is in them, and changing them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.default_command import ListByDefault
from penstock.cli.output import count_text, print_json, print_table, say, size_text
from penstock.cli.stream import DEFAULT_URL, AsJson, Configs, Url, examples, open_stream, pairs

if TYPE_CHECKING:
    from penstock.streams import Connection
    from penstock.streams.kafka.topics import TopicSummary

app = typer.Typer(
    cls=ListByDefault,
    rich_markup_mode=None,
    help="List, create, describe, alter and delete topics.",
    no_args_is_help=False,
)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic; `penstock topics list` has them.")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="One topic or several.")]
Sizes = dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLine:
    """A topic in the list."""

    topic: str
    partitions: int
    records: int
    """Offsets from the first to the end: in a compacted topic, more than there are records."""
    size_bytes: int | None
    internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """A partition in the description of its topic."""

    partition: int
    start: int
    end: int
    records: int
    size_bytes: int | None


@app.command("list", epilog=examples("penstock topics", "penstock topics list --all --json"))
def list_topics(
    url: Url = DEFAULT_URL,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the topics that the broker keeps for itself.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the topics, with how much is in them."""
    with open_stream(url) as stream:
        topics = [topic for topic in stream.administration.all() if everything or not topic.internal]
        sizes, problem = _sizes(stream)
        rows = _summaries(stream, topics, sizes)
    if as_json:
        print_json(rows)
    elif not rows:
        say("There are no topics yet. Make one with: penstock topics create NAME")
    else:
        print_table(
            ["topic", "partitions", "records", "size"],
            [(row.topic, row.partitions, row.records, size_text(row.size_bytes)) for row in rows],
            numbers=["partitions", "records", "size"],
        )
        if problem is not None:
            say(problem)


def _sizes(stream: Connection) -> tuple[Sizes | None, str | None]:
    """The size of each partition, or why it is not known."""
    from penstock.errors import StreamError

    try:
        return stream.administration.sizes(), None
    except StreamError as error:
        text = str(error)
        return None, f"{text[:1].upper()}{text[1:]}"


def _summaries(stream: Connection, topics: list[TopicSummary], sizes: Sizes | None) -> list[TopicLine]:
    spans = stream.administration.spans((topic.name, number) for topic in topics for number in topic.partitions)
    lines = []
    for topic in topics:
        places = [(topic.name, number) for number in topic.partitions]
        lines.append(
            TopicLine(
                topic=topic.name,
                partitions=len(places),
                records=sum(spans[place].end - spans[place].start for place in places if place in spans),
                size_bytes=None if sizes is None else sum(sizes.get(place, 0) for place in places),
                internal=topic.internal,
            )
        )
    return lines


@app.command(
    "create",
    epilog=examples(
        "penstock topics create orders --partitions 6",
        "penstock topics create customers --config cleanup.policy=compact",
        "penstock topics create clicks --config retention.ms=3600000 --if-not-exists",
    ),
)
def create(
    names: Names,
    url: Url = DEFAULT_URL,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="How many partitions; else as many as the broker gives by default.")
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that exists already is no error, and stays as it is.")
    ] = False,
) -> None:
    """Create topics."""
    from penstock.errors import TopicExistsError

    settings = pairs(config, "--config")
    with open_stream(url) as stream:
        for name in names:
            try:
                stream.create_topic(name, partitions, settings)
            except TopicExistsError:
                if not if_not_exists:
                    raise
                say(f"Topic {name} exists already.")
            else:
                say(f"Created topic {name}.")


@app.command("describe", epilog=examples("penstock topics describe orders", "penstock topics describe orders --json"))
def describe(
    name: Name,
    url: Url = DEFAULT_URL,
    all_config: Annotated[
        bool, typer.Option("--all-config", help="Also the settings that are the broker's defaults.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a topic's partitions, with their offsets and sizes, and its settings."""
    with open_stream(url) as stream:
        topic = stream.administration.require(name)
        spans = stream.administration.spans((name, number) for number in topic.partitions)
        sizes, problem = _sizes(stream)
        settings = [each for each in stream.administration.config(name) if all_config or not each.is_default]
    partitions = [
        PartitionLine(
            partition=number,
            start=spans[name, number].start,
            end=spans[name, number].end,
            records=spans[name, number].end - spans[name, number].start,
            size_bytes=None if sizes is None else sizes.get((name, number), 0),
        )
        for number in topic.partitions
        if (name, number) in spans
    ]
    if as_json:
        config = {each.name: each.value for each in settings}
        print_json({"topic": name, "internal": topic.internal, "partitions": partitions, "config": config})
        return
    columns = ["partition", "start", "end", "records", "size"]
    rows = [(row.partition, row.start, row.end, row.records, size_text(row.size_bytes)) for row in partitions]
    print_table(columns, rows, numbers=columns)
    if problem is not None:
        say(problem)
    typer.echo("")
    if settings:
        print_table(["setting", "value"], [(each.name, each.value) for each in settings])
    else:
        typer.echo("All settings are the broker's defaults; --all-config shows them.")


@app.command("delete", epilog=examples("penstock topics delete orders", "penstock topics delete orders clicks --yes"))
def delete(
    names: Names,
    url: Url = DEFAULT_URL,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete topics, and all of their records for good."""
    with open_stream(url) as stream:
        topics = [stream.administration.require(name) for name in dict.fromkeys(names)]
        if not yes:
            for row in _summaries(stream, topics, None):
                say(f"{row.topic}: {count_text(row.records, 'record')}")
            _ask(f"Delete {count_text(len(topics), 'topic')} for good?")
        for topic in topics:
            stream.delete_topic(topic.name)
            say(f"Deleted topic {topic.name}.")


def _ask(question: str) -> None:
    """Go on only when a person says yes."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody can be asked here: add --yes to go on without asking", param_hint="--yes")
    if not typer.confirm(question, err=True):
        say("Nothing was deleted.")
        raise typer.Exit(1)


@app.command(
    "alter",
    epilog=examples(
        "penstock topics alter orders --partitions 12",
        "penstock topics alter orders --config retention.ms=86400000 --reset cleanup.policy",
    ),
)
def alter(
    name: Name,
    url: Url = DEFAULT_URL,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="How many partitions it is to have: never less.")
    ] = None,
    config: Configs = None,
    reset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A setting to take back to the default; may be repeated.")
    ] = None,
) -> None:
    """Give a topic more partitions, or other settings."""
    changes: dict[str, str | None] = {**pairs(config, "--config")}
    for setting in reset or []:
        if setting in changes:
            raise typer.BadParameter(f"{setting} is set and reset in one command", param_hint="--reset")
        changes[setting] = None
    if partitions is None and not changes:
        raise typer.BadParameter("nothing to change: give --partitions, --config or --reset")
    with open_stream(url) as stream:
        topic = stream.administration.require(name)
        if partitions is not None and partitions < len(topic.partitions):
            raise typer.BadParameter(
                f"topic {name} has {len(topic.partitions)} partitions; they can be added to, never taken away",
                param_hint="--partitions",
            )
        if changes:
            stream.administration.change_config(name, changes)
        if partitions is not None and partitions > len(topic.partitions):
            stream.administration.add_partitions(name, partitions)
            say("Records of a key may now go to another partition than before.")
    say(f"Altered topic {name}.")
