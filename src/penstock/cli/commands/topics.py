"""`penstock topics`: list, inspect and change topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from penstock.abc import CountingSurvey, Feature
from penstock.cli.options import DEFAULT_URL, AsJson, Configs, ListByDefault, Url, examples, pairs
from penstock.cli.output import confirm, print_json, say, size_text
from penstock.cli.stream import open_connection
from penstock.cli.tables import print_table
from penstock.errors import StreamError, TopicExistsError
from penstock.model.administration import ANSWER_TIMEOUT_S, PartitionId, Span, TopicSummary
from penstock.model.pointer_forms import pointer_value
from penstock.model.text import count_text
from penstock.observe.facts import total
from penstock.streams import Connection
from penstock.streams.url import without_password

app = typer.Typer(
    name="topics",
    cls=ListByDefault,
    rich_markup_mode=None,
    help="List, create, describe, alter and delete topics.",
    no_args_is_help=False,
)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, from `penstock topics list`.")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="One topic or several.")]
Sizes = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLine:
    topic: str
    partitions: int
    records: int | None
    """Offsets from the first to the end: in a compacted topic, more than there are records. None if pointers do not
    count records."""
    size_bytes: int | None
    internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    partition: int
    start: int | str
    end: int | str
    """In the system's own form."""
    records: int | None
    size_bytes: int | None


@app.command("list", epilog=examples("penstock topics", "penstock topics list --all --json"))
def list_topics(
    url: Url = DEFAULT_URL,
    everything: Annotated[bool, typer.Option("--all", help="Include internal topics.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the topics, with their numbers of records and sizes."""
    with open_connection(url) as stream:
        topics = [topic for topic in stream.admin().all() if everything or not topic.internal]
        sizes, problem = _sizes(stream)
        rows = _summaries(stream, topics, sizes)
    if as_json:
        print_json(rows)
    elif not rows:
        say("There are no topics yet. Create one with: penstock topics create NAME")
    else:
        print_table(
            ["topic", "partitions", "records", "size"],
            [(row.topic, row.partitions, _shown(row.records), size_text(row.size_bytes)) for row in rows],
            numbers=["partitions", "records", "size"],
        )
        if problem is not None:
            say(problem)


def _sizes(stream: Connection) -> tuple[Sizes | None, str | None]:
    """The size of each partition, or why it is unknown."""
    try:
        return stream.admin().sizes(), None
    except StreamError as error:
        text = str(error)
        return None, f"{text[:1].upper()}{text[1:]}"


def _counted(stream: Connection, spans: Mapping[PartitionId, Span]) -> dict[PartitionId, int | None]:
    """How many records each partition has; None where neither pointers nor the system tell."""
    if Feature.OFFSETS in stream.features:
        return {place: span.end - span.start for place, span in spans.items()}
    survey = stream.survey(ANSWER_TIMEOUT_S)
    counts = survey.record_counts(spans) if isinstance(survey, CountingSurvey) else {}
    return {
        place: counts[place].stored if place in counts else None if span.end > span.start else 0
        for place, span in spans.items()
    }


def _shown(records: int | None) -> int | str:
    return "-" if records is None else records


def _summaries(stream: Connection, topics: list[TopicSummary], sizes: Sizes | None) -> list[TopicLine]:
    spans = stream.admin().spans((topic.name, number) for topic in topics for number in topic.partitions)
    records = _counted(stream, spans)
    lines = []
    for topic in topics:
        places = [(topic.name, number) for number in topic.partitions]
        lines.append(
            TopicLine(
                topic=topic.name,
                partitions=len(places),
                records=total(records[place] for place in places if place in spans),
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
    partitions: Annotated[int | None, typer.Option(min=1, help="How many partitions. Default: the broker's.")] = None,
    config: Configs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Leave an existing topic as it is, without an error.")
    ] = False,
) -> None:
    """Create topics."""
    settings = pairs(config, "--config")
    with open_connection(url) as stream:
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
        bool, typer.Option("--all-config", help="Include settings with the broker's default.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a topic's partitions, with their offsets and sizes, and its settings."""
    with open_connection(url) as stream:
        topic = stream.admin().require(name)
        spans = stream.admin().spans((name, number) for number in topic.partitions)
        records = _counted(stream, spans)
        sizes, problem = _sizes(stream)
        settings = [each for each in stream.admin().config(name) if all_config or not each.is_default]
    partitions = [
        PartitionLine(
            partition=number,
            start=pointer_value(spans[name, number].start, stream.pointer_text),
            end=pointer_value(spans[name, number].end, stream.pointer_text),
            records=records[name, number],
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
    rows = [(row.partition, row.start, row.end, _shown(row.records), size_text(row.size_bytes)) for row in partitions]
    print_table(columns, rows, numbers=columns)
    if problem is not None:
        say(problem)
    typer.echo("")
    if settings:
        print_table(["setting", "value"], [(each.name, each.value) for each in settings])
    elif Feature.ADMIN in stream.features:
        typer.echo("All settings are the broker's defaults; --all-config shows them.")
    else:
        typer.echo(f"Its settings are not known: {without_password(stream.url)} has no {Feature.ADMIN}.")


@app.command("delete", epilog=examples("penstock topics delete orders", "penstock topics delete orders clicks --yes"))
def delete(
    names: Names,
    url: Url = DEFAULT_URL,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete topics and all their records for good."""
    with open_connection(url) as stream:
        topics = [stream.admin().require(name) for name in dict.fromkeys(names)]
        if not yes:
            for row in _summaries(stream, topics, None):
                say(f"{row.topic}: {'some records' if row.records is None else count_text(row.records, 'record')}")
            confirm(f"Delete {count_text(len(topics), 'topic')} for good?", "Nothing was deleted.")
        for topic in topics:
            stream.delete_topic(topic.name)
            say(f"Deleted topic {topic.name}.")


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
        int | None, typer.Option(min=1, help="The new number of partitions, which can only grow.")
    ] = None,
    config: Configs = None,
    reset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A setting to reset to its default; may be repeated.")
    ] = None,
) -> None:
    """Add partitions to a topic, or change its settings."""
    changes: dict[str, str | None] = {**pairs(config, "--config")}
    for setting in reset or []:
        if setting in changes:
            raise typer.BadParameter(f"{setting} is set and reset in one command", param_hint="--reset")
        changes[setting] = None
    if partitions is None and not changes:
        raise typer.BadParameter("nothing to change: give --partitions, --config or --reset")
    with open_connection(url) as stream:
        topic = stream.admin().require(name)
        if partitions is not None and partitions < len(topic.partitions):
            raise typer.BadParameter(
                f"topic {name} has {len(topic.partitions)} partitions; partitions can be added, not removed",
                param_hint="--partitions",
            )
        if changes:
            stream.admin().change_config(name, changes)
        if partitions is not None and partitions > len(topic.partitions):
            stream.admin().add_partitions(name, partitions)
            say("Records of a key may now go to another partition than before.")
    say(f"Altered topic {name}.")
