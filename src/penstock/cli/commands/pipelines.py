"""`penstock pipelines`: the state of pipelines; comparing, switching and retiring their versions."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.comparisons import print_comparisons
from penstock.cli.options import DEFAULT_URL, AsJson, ListByDefault, Url, examples, spark_settings
from penstock.cli.output import print_json, say, size_text, time_text
from penstock.cli.quantities import seconds
from penstock.cli.stream import open_connection
from penstock.cli.tables import print_table
from penstock.dead_letters import open_dead_letters
from penstock.errors import BrokerUnavailableError, ConfigError
from penstock.model import DeadLetterFilter
from penstock.model.text import count_text, duration_text
from penstock.observe.facts import DEAD
from penstock.observe.letters import SUFFIX
from penstock.observe.pipelines import find_pipelines, pipeline_events, pipelines_folder

if TYPE_CHECKING:
    from penstock.observe.facts import PipelineFacts
    from penstock.spark.versions.register import Register, Version
    from penstock.streams import Connection

app = typer.Typer(
    name="pipelines",
    cls=ListByDefault,
    rich_markup_mode=None,
    help="Show the state of pipelines; compare, switch and retire their versions, and clean up.",
    no_args_is_help=False,
)

Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="The name of the pipeline.")]
OneVersion = Annotated[
    str, typer.Argument(metavar="VERSION", help="One of its versions, from `penstock pipelines versions`.")
]
Master = Annotated[str | None, typer.Option(metavar="MASTER", help="Where Spark runs, as for penstock run.")]
Checkpoints = Annotated[
    Path | None,
    typer.Option(
        "--checkpoints",
        metavar="DIR",
        help="The folder in which pipelines keep their checkpoints; by default the one beside an embedded log's "
        "records, or ./pipelines.",
    ),
]
DeadLetters = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LETTERS",
        help="Also count dead letters here: sqlite:PATH, file:PATH, or a topic whose name does not end in .dlq; may be "
        "repeated.",
    ),
]
_HISTORY: Final = 10
_STORE: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")
"""A URL as a path: its second slash is gone."""
_COUNTS: Final = ("read", "written", "late", "refused", "bad", "dropped")


@app.command(
    "list", epilog=examples("penstock pipelines", "penstock pipelines list --checkpoints /srv/pipelines --json")
)
def list_pipelines(
    url: Url = DEFAULT_URL,
    checkpoints: Checkpoints = None,
    dead_letters: DeadLetters = None,
    as_json: AsJson = False,
) -> None:
    """List pipelines with their states: lag, rate, last batch, restarts, late rows and dead letters.

    A pipeline is found by its checkpoints on this machine, whether it runs or not. States: starting, running, waiting
    (for the next attempt after an error), failed, stopped, finished, and dead: its process ended without reporting it.
    """
    found, letters = _look(url, checkpoints, dead_letters or ())
    rows = [_standing(facts, letters) for facts in found.values()]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say(f"There is no pipeline in {_folder(url, checkpoints)}. Run one with: penstock run FILE.py")
        return
    print_table(
        ["pipeline", "version", "state", "lag", "rows/s", "last batch", "restarts", "late", "dead letters"],
        [_row(row) for row in rows],
        numbers=["lag", "rows/s", "restarts", "late", "dead letters"],
    )
    for facts in found.values():
        for text in _errors(facts):
            say(text)


@app.command("show", epilog=examples("penstock pipelines show usage", "penstock pipelines show usage@v2 --json"))
def show(
    pipeline: Annotated[
        str, typer.Argument(metavar="PIPELINE", help="The pipeline, with its version if it is not the first: usage@v2.")
    ],
    url: Url = DEFAULT_URL,
    checkpoints: Checkpoints = None,
    dead_letters: DeadLetters = None,
    as_json: AsJson = False,
) -> None:
    """Show one pipeline: each query, its last error, and its recent events."""
    found, letters = _look(url, checkpoints, dead_letters or ())
    facts = found.get(pipeline)
    if facts is None:
        there = ", ".join(found) or "none"
        raise ConfigError(f"there is no pipeline {pipeline!r} in {_folder(url, checkpoints)}: there is {there}")
    history = pipeline_events(Path(facts.folder), _HISTORY)
    if as_json:
        print_json({**_standing(facts, letters), "history": history})
        return
    say(f"Pipeline {facts.name} is {facts.state}; its checkpoints are in {facts.folder}")
    print_table(
        ["query", "state", "batch", *_COUNTS, "lag", "rows/s", "batch took", "watermark", "restarts"],
        [
            (
                query.query,
                query.state,
                query.batch_id,
                f"{query.rows_read:,}",
                f"{query.rows_written:,}",
                f"{query.rows_late:,}",
                f"{query.rows_refused:,}",
                f"{query.rows_bad:,}",
                f"{query.rows_dropped:,}",
                None if query.lag is None else f"{query.lag:,}",
                f"{query.rows_per_s:,.0f}" if facts.is_running else None,
                f"{query.batch_s:.3f} s",
                query.watermark,
                query.restarts,
            )
            for query in facts.queries
        ],
        numbers=["batch", *_COUNTS, "lag", "rows/s", "batch took", "restarts"],
    )
    for text in (*_bad_rows(facts), *_errors(facts)):
        say(text)
    for each in history:
        typer.echo(f"{time_text(each.at_ms)}  {each.query} {each.what}{f': {each.error}' if each.error else ''}")


def _bad_rows(facts: PipelineFacts) -> Iterator[str]:
    """One line for each query with bad rows: what these failed."""
    for query in facts.queries:
        rules = [
            f"{rule} {count:,} ({query.batch_bad_rows.get(rule, 0):,} in the last batch)"
            for rule, count in sorted(query.bad_rows.items())
            if count
        ]
        if rules:
            yield f"Bad rows of {query.query}: {', '.join(rules)}"


def _folder(url: str, checkpoints: Path | None) -> Path:
    if checkpoints is not None and _STORE.match(str(checkpoints)):
        raise typer.BadParameter(
            "it must be a folder of this machine. Of checkpoints in s3a:// or hdfs://, only versions can be listed "
            "(penstock pipelines versions) and removed (penstock pipelines retire)",
            param_hint="--checkpoints",
        )
    return checkpoints if checkpoints is not None else pipelines_folder(url)


def _look(
    url: str, checkpoints: Path | None, places: Sequence[str]
) -> tuple[dict[str, PipelineFacts], Mapping[str, int] | None]:
    """The pipelines with checkpoints in the folder, and the number of dead letters of each; None when the stream,
    unlike the folder, cannot be asked."""
    found = find_pipelines(_folder(url, checkpoints))
    names = {_parted(name)[0] for name in found}
    if not found:
        return found, {}
    try:
        with open_connection(url) as stream:
            return found, _letters_of(names, stream, places)
    except BrokerUnavailableError as error:
        say(f"Dead letters cannot be counted: {error}")
        return found, None


def _letters_of(pipelines: set[str], stream: Connection, places: Sequence[str]) -> dict[str, int]:
    counts = dict.fromkeys(pipelines, 0)
    for place in dict.fromkeys([*(topic for topic in stream.topics() if topic.endswith(SUFFIX)), *places]):
        with contextlib.closing(open_dead_letters(place, stream)) as letters:
            for name in pipelines:
                counts[name] += letters.count(DeadLetterFilter(group=name))
    return counts


def _parted(name: str) -> tuple[str, str]:
    """The name and version of a pipeline from its folder's name: usage is the first, usage@v2 the second."""
    pipeline, _, version = name.partition("@")
    return pipeline, version or "v1"


def _standing(facts: PipelineFacts, letters: Mapping[str, int] | None) -> dict[str, Any]:
    pipeline, version = _parted(facts.name)
    batch_ms = max((query.batch_at_ms for query in facts.queries if query.batch_at_ms is not None), default=None)
    return {
        "pipeline": pipeline,
        "version": version,
        "state": facts.state,
        "lag": facts.lag,
        "rows_per_s": sum(query.rows_per_s for query in facts.queries) if facts.is_running else None,
        "last_batch": max((query.batch_id for query in facts.queries), default=None),
        "last_batch_at_ms": batch_ms,
        "restarts": sum(query.restarts for query in facts.queries),
        "late": sum(query.rows_late for query in facts.queries),
        "dead_letters": None if letters is None else letters[pipeline],
        "folder": facts.folder,
        "queries": facts.queries,
    }


def _row(row: Mapping[str, Any]) -> Sequence[object]:
    batch = None
    if row["last_batch_at_ms"] is not None:
        batch = f"{row['last_batch']}, {duration_text(time.time() - row['last_batch_at_ms'] / 1000)} ago"
    return (
        row["pipeline"],
        row["version"],
        row["state"],
        None if row["lag"] is None else f"{row['lag']:,}",
        None if row["rows_per_s"] is None else f"{row['rows_per_s']:,.0f}",
        batch,
        row["restarts"],
        f"{row['late']:,}",
        None if row["dead_letters"] is None else f"{row['dead_letters']:,}",
    )


def _errors(facts: PipelineFacts) -> Iterator[str]:
    """Messages about queries that failed or wait after an error, and about a dead process."""
    if facts.state == DEAD:
        yield f"{facts.name} is dead: its process ended silently. Start it again; it continues at its checkpoint."
    for query in facts.queries:
        if query.error is not None and query.state in ("failed", "waiting"):
            whole = f" (with tracebacks in {query.error_file})" if query.error_file else ""
            yield f"{facts.name}.{query.query}: {query.error}{whole}"


@app.command("versions", epilog=examples("penstock pipelines versions", "penstock pipelines versions --all --json"))
def list_versions(
    url: Url = DEFAULT_URL,
    everything: Annotated[bool, typer.Option("--all", help="Include retired versions.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the pipelines that were reprocessed, with their versions and topics."""
    with open_connection(url) as stream:
        found = [each for versions in _register(stream).pipelines().values() for each in versions]
    rows = [each for each in found if everything or each.state != "retired"]
    if as_json:
        print_json(rows)
    elif not rows:
        say("No pipeline has more than its first version. Create one with: penstock run FILE.py --reprocess")
    else:
        print_table(
            ["pipeline", "version", "state", "since", "topics"],
            [(row.pipeline, row.version, row.state, row.since, " ".join(row.topics.values())) for row in rows],
        )


@app.command(
    "compare", epilog=examples("penstock pipelines compare usage v2", "penstock pipelines compare usage v3 v2")
)
def compare(
    pipeline: Pipeline,
    version: OneVersion,
    to: Annotated[str | None, typer.Argument(metavar="[OLD]", help="By default, the current version.")] = None,
    url: Url = DEFAULT_URL,
    master: Master = None,
    limit: Annotated[int, typer.Option(min=0, help="How many examples of each kind of difference.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Compare the results of a version with those of another."""
    from penstock.cli.programs import stop_session
    from penstock.spark.sessions.opening import session
    from penstock.spark.versions.reprocessing import compare_versions

    with open_connection(url) as stream:
        register = _register(stream)
        new = register.find(pipeline, version)
        old = register.find(pipeline, to or register.current(pipeline))
        if old.version == new.version:
            raise typer.BadParameter(f"version {version} is the current one: name another version")
        try:
            comparisons = compare_versions(session("penstock compare", master=master), url, old, new, examples=limit)
        finally:
            stop_session()
    if as_json:
        fields = ("by", "same", "only_old", "only_new", "different")
        print_json({name: {field: getattr(each, field) for field in fields} for name, each in comparisons.items()})
    else:
        print_comparisons(old.version, new.version, comparisons)


@app.command("switch", epilog=examples("penstock pipelines switch usage v2", "penstock pipelines switch usage v1"))
def switch(
    pipeline: Pipeline,
    version: OneVersion,
    url: Url = DEFAULT_URL,
    expected: Annotated[str | None, typer.Option(metavar="VERSION", help="Only if this version is current.")] = None,
) -> None:
    """Switch readers to the results of a version. Running readers switch when they restart."""
    with open_connection(url) as stream:
        register = _register(stream)
        before = expected or register.current(pipeline)
        for name, topic in register.switch(pipeline, version, expected=before).items():
            say(f"Readers of {name} get topic {topic} from now on.")


@app.command(
    "retire",
    epilog=examples("penstock pipelines retire usage v1", "penstock pipelines retire usage v1 --delete-topics"),
)
def retire(
    pipeline: Pipeline,
    version: OneVersion,
    url: Url = DEFAULT_URL,
    delete_topics: Annotated[
        bool, typer.Option("--delete-topics", help="Also delete its topics and all their records for good.")
    ] = False,
    master: Master = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A Spark setting, to reach checkpoints in s3a:// or hdfs://; may be repeated."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Checkpoints in s3a:// or hdfs://: also if a run on another host has not told that it ended. Only if "
            "you know that its process is dead.",
        ),
    ] = False,
) -> None:
    """Stop a version that is not current, and remove its checkpoints.

    From then on the version cannot be started, and its runs end, wherever they are; checkpoints are removed after that.
    """
    from penstock.cli.programs import stop_session
    from penstock.cli.reprocess import say_retired, say_waiting
    from penstock.spark.versions.retiring import retire as retire_version

    with open_connection(url) as stream:
        entry = _register(stream).find(pipeline, version)
        spark = None
        if _is_elsewhere(entry):
            from penstock.spark.sessions.opening import session

            spark = session("penstock retire", master=master, conf=spark_settings(conf))
        elif force or conf:
            raise typer.BadParameter(
                f"it is for checkpoints in s3a:// or hdfs://, and these are in {entry.checkpoints}",
                param_hint="--force" if force else "--conf",
            )
        try:
            retired = retire_version(
                stream, entry, delete_topics=delete_topics, spark=spark, force=force, on_wait=say_waiting
            )
            say_retired(version, retired)
        finally:
            stop_session()


@app.command(
    "clean",
    epilog=examples("penstock pipelines clean", "penstock pipelines clean --keep 1 --older-than 1d --yes"),
)
def clean(
    pipeline: Annotated[
        str | None, typer.Argument(metavar="[PIPELINE]", help="Only this pipeline. Default: all in the folder.")
    ] = None,
    url: Url = DEFAULT_URL,
    checkpoints: Checkpoints = None,
    keep: Annotated[int, typer.Option(min=0, help="How many of the newest versions of each pipeline to keep.")] = 2,
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help="Keep what was changed within this time, such as 12h or 30d.")
    ] = "7d",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete. Without it, only show what would be deleted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete checkpoints that nothing needs: of old and retired versions, and of queries that were dropped.

    Versions that run, that readers get, or that are being reprocessed are always kept, whatever the options say; so are
    folders that are not known to the stream. A deleted version is retired, so that it cannot start over. Topics stay.
    """
    from penstock.cli.cleaning import Retention, look, remove, remove_leftovers, total_bytes

    retention = Retention(keep, seconds(older_than, "--older-than"))
    folder = _folder(url, checkpoints)
    with open_connection(url) as stream:
        register = _register(stream)
        looked = [each for each in look(folder, register, retention, time.time()) if pipeline in (None, each.pipeline)]
        if pipeline is not None and not looked:
            raise ConfigError(f"there is no pipeline {pipeline!r} in {folder}")
        doomed = [each for each in looked if each.is_removable]
        if yes:
            remove_leftovers(folder)
            for each in doomed:
                remove(each, register)
    if as_json:
        print_json({"deleted": yes, "bytes": total_bytes(looked), "checkpoints": looked})
        return
    print_table(
        ["pipeline", "version", "query", "size", "changed", "verdict", "why"],
        [
            (
                each.pipeline,
                each.version,
                each.query,
                size_text(each.size_bytes),
                time_text(round(each.changed_at_s * 1000)),
                each.verdict if not (yes and each.is_removable) else "removed",
                each.why,
            )
            for each in looked
        ],
        numbers=["size"],
    )
    size = size_text(total_bytes(looked))
    if yes:
        say(f"Deleted {count_text(len(doomed), 'checkpoint')}, {size}.")
    elif doomed:
        say(f"Nothing is deleted yet. To delete {count_text(len(doomed), 'checkpoint')}, {size}: add --yes")
    else:
        say(f"There is nothing to delete in {folder}.")


def _is_elsewhere(entry: Version) -> bool:
    """Whether its checkpoints are where only Spark reaches."""
    from penstock.spark.run.state_folder import StateFolder

    return entry.checkpoints is not None and StateFolder(entry.checkpoints).local is None


def _register(stream: Connection) -> Register:
    from penstock.spark.versions.register import Register

    return Register(stream)
