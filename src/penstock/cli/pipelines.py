"""`penstock pipelines`: the versions of pipelines: comparing them, switching readers, retiring what is not used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.default_command import ListByDefault
from penstock.cli.output import print_json, print_table, say
from penstock.cli.stream import DEFAULT_URL, AsJson, Url, examples, open_stream

if TYPE_CHECKING:
    from penstock.spark.versions.register import Register, Version
    from penstock.streams import Connection

app = typer.Typer(
    cls=ListByDefault,
    rich_markup_mode=None,
    help="List the versions of pipelines, compare and switch them, retire old ones.",
    no_args_is_help=False,
)

Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, by the name its program gives it.")]
OneVersion = Annotated[
    str, typer.Argument(metavar="VERSION", help="One of its versions; `penstock pipelines list` has them.")
]
Master = Annotated[str | None, typer.Option(metavar="MASTER", help="Where Spark runs, as for penstock run.")]


@app.command("list", epilog=examples("penstock pipelines", "penstock pipelines list --all --json"))
def list_versions(
    url: Url = DEFAULT_URL,
    everything: Annotated[bool, typer.Option("--all", help="Also the versions that were retired.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the pipelines that have been processed again, with their versions and topics."""
    with open_stream(url) as stream:
        found = [each for versions in _register(stream).pipelines().values() for each in versions]
    rows = [each for each in found if everything or each.state != "retired"]
    if as_json:
        print_json(rows)
    elif not rows:
        say("No pipeline has more than its first version. Make one with: penstock run FILE.py --reprocess")
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
    from penstock.cli.comparisons import print_comparisons
    from penstock.cli.run import stop_session
    from penstock.spark.sessions import session
    from penstock.spark.versions.reprocessing import compare_versions

    with open_stream(url) as stream:
        register = _register(stream)
        new = register.find(pipeline, version)
        old = register.find(pipeline, to or register.current(pipeline))
        if old.version == new.version:
            raise typer.BadParameter(f"version {version} is the current one: name another to compare it with")
        try:
            comparisons = compare_versions(session("penstock compare", master=master), url, old, new, examples=limit)
        finally:
            stop_session()
    if as_json:
        print_json(
            {
                name: {
                    "by": each.by,
                    "same": each.same,
                    "only_old": each.only_old,
                    "only_new": each.only_new,
                    "different": each.different,
                }
                for name, each in comparisons.items()
            }
        )
    else:
        print_comparisons(old.version, new.version, comparisons)


@app.command("switch", epilog=examples("penstock pipelines switch usage v2", "penstock pipelines switch usage v1"))
def switch(
    pipeline: Pipeline,
    version: OneVersion,
    url: Url = DEFAULT_URL,
    expected: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Only if this is the current version by now.")
    ] = None,
) -> None:
    """Lead readers to the results of a version. Those that run go on with what they have until they start again."""
    with open_stream(url) as stream:
        register = _register(stream)
        before = expected or register.current(pipeline)
        for name, topic in register.switch(pipeline, version, expected=before).items():
            say(f"Readers of {name} are led to topic {topic} from now on.")


@app.command(
    "retire",
    epilog=examples("penstock pipelines retire usage v1", "penstock pipelines retire usage v1 --delete-topics"),
)
def retire(
    pipeline: Pipeline,
    version: OneVersion,
    url: Url = DEFAULT_URL,
    delete_topics: Annotated[
        bool, typer.Option("--delete-topics", help="Delete its topics, too, and all of their records for good.")
    ] = False,
    master: Master = None,
) -> None:
    """Stop a version that is not current, and remove its checkpoints."""
    from penstock.cli.reprocess import say_retired
    from penstock.cli.run import stop_session
    from penstock.spark.versions.retiring import retire as retire_version

    with open_stream(url) as stream:
        entry = _register(stream).find(pipeline, version)
        spark = None
        if _is_elsewhere(entry):
            from penstock.spark.sessions import session

            spark = session("penstock retire", master=master)
        try:
            say_retired(version, retire_version(stream, entry, delete_topics=delete_topics, spark=spark))
        finally:
            stop_session()


def _is_elsewhere(entry: Version) -> bool:
    """Whether its checkpoints are where only Spark reaches."""
    from penstock.spark.folders import StateFolder

    return entry.checkpoints is not None and StateFolder(entry.checkpoints).local is None


def _register(stream: Connection) -> Register:
    from penstock.spark.versions.register import Register

    return Register(stream)
