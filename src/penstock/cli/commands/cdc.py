"""`penstock cdc`: rows and changes of a database into topics."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from typer.core import TyperGroup

from penstock.cli.logs import show_log_of
from penstock.cli.options import AsJson, examples
from penstock.cli.output import print_json, say, size_text, time_text
from penstock.cli.quantities import seconds
from penstock.cli.stream import open_connection
from penstock.cli.tables import print_table
from penstock.errors import ConfigError
from penstock.model import Position
from penstock.model.stop_signals import on_stop_signals
from penstock.model.text import duration_text
from penstock.observe.captures import CaptureObserver
from penstock.observe.facts import RUNNING_PHASES
from penstock.observe.metrics.serving import serve
from penstock.streams.url import without_password
from penstock.tables import Capture, CaptureProgress
from penstock.tables.apply import Applier
from penstock.tables.apply import compare as compare_tables
from penstock.tables.cdc.delivery import forget_capture
from penstock.tables.cdc.records import CaptureFormat
from penstock.tables.cdc.requests import request_snapshot, wait_until_done
from penstock.tables.cdc.source import SnapshotMode
from penstock.tables.cdc.status import CaptureStatus, capture_status
from penstock.tables.changes import ChangeFormat

_SHOWN_EVERY_S: Final = 1.0
_LOGGED_EVERY_S: Final = 30.0
_STATUS_COLUMNS: Final = ("name", "slot", "state", "behind", "kept", "room", "written/s", "time to loss")


class RunByDefault(TyperGroup):
    """`penstock cdc SOURCE STREAM` is `penstock cdc run SOURCE STREAM`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="cdc",
    cls=RunByDefault,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Capture the rows and changes of a database into topics, apply them to another database, and compare the two.",
    epilog=examples(
        "penstock cdc postgresql://localhost/shop log:./data --tables public.users --tables 'public.o*'",
        "penstock cdc status postgresql://localhost/shop",
    ),
)

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE_URL",
        help="The database: postgresql://USER@HOST/DATABASE, mysql://... or mariadb://..., or sqlite:FILE.",
    ),
]
Target = Annotated[
    str,
    typer.Argument(metavar="TARGET_URL", help="The copy: postgresql://USER@HOST/DATABASE or sqlite:FILE."),
]


CaptureName = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the capture, as `penstock lag` shows it.")
]
CaptureStream = Annotated[str, typer.Argument(metavar="STREAM_URL", help="Where the capture writes: log:./data.")]


@app.command("run", epilog=examples("penstock cdc run postgresql://localhost/shop log:./data --tables public.users"))
def run(
    source: Source,
    stream: Annotated[str, typer.Argument(metavar="STREAM_URL", help="Where topics are written: log:./data.")],
    tables: Annotated[
        list[str],
        typer.Option("--tables", "-t", metavar="TABLE", help="SCHEMA.TABLE, with * and ? for any; may be repeated."),
    ],
    name: Annotated[
        str | None, typer.Option(help="Tells captures into one stream apart. Default: the database's name.")
    ] = None,
    form: Annotated[
        CaptureFormat, typer.Option("--format", help="Debezium's envelope, or the row itself.")
    ] = CaptureFormat.DEBEZIUM,
    prefix: Annotated[
        str | None, typer.Option(help="Topics are PREFIX.SCHEMA.TABLE. Default: the database's name.")
    ] = None,
    snapshot: Annotated[
        SnapshotMode,
        typer.Option(
            help="Rows that tables have now: read them once (initial), never, only them, or all of them again, after "
            "changes were lost."
        ),
    ] = SnapshotMode.INITIAL,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of topics that are created.")] = 1,
    slot: Annotated[str | None, typer.Option(help="An existing replication slot.  [default: penstock_NAME]")] = None,
    publication: Annotated[
        str | None, typer.Option(help="An existing publication.  [default: penstock_NAME, created]")
    ] = None,
    checkpoints: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the position is kept, for a stream without transactions.")
    ] = None,
    snapshot_rows: Annotated[int, typer.Option(min=1, help="Rows stored together in the snapshot.")] = 20_000,
    batch_rows: Annotated[int, typer.Option(min=1, help="Changes stored together, at most.")] = 10_000,
    heartbeat: Annotated[
        str, typer.Option(metavar="DURATION", help="How often an idle capture lets the database remove its log.")
    ] = "10s",
    history: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How far back Table.as_of can look: compaction keeps replaced rows for as long, such as 7d.",
        ),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus there.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an address that other machines can reach: there is no login.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only warnings and errors.")] = False,
) -> None:
    """Capture tables until stopped: first the rows they have, then every change.

    SIGTERM and Ctrl-C store what was read, then end. Killed at any moment, it continues where it was.
    """
    show_log_of("penstock", quiet=True)
    serving = contextlib.nullcontext() if metrics is None else serve(metrics, insecure=insecure)
    with (
        serving,
        Capture(
            source,
            stream,
            tables=tables,
            name=name,
            format=form,
            prefix=prefix,
            snapshot=snapshot,
            partitions=partitions,
            slot=slot,
            publication=publication,
            checkpoints=checkpoints,
            snapshot_rows=snapshot_rows,
            batch_rows=batch_rows,
            heartbeat_s=seconds(heartbeat, "--heartbeat"),
            history_s=None if history is None else seconds(history, "--history"),
        ) as capture,
    ):
        with on_stop_signals(lambda _: capture.stop(), once=True), _shown(capture, stream, quiet):
            capture.run()
        if not quiet:
            say(_line(capture.progress))


@app.command(
    "apply",
    epilog=examples(
        "penstock cdc apply log:./data shop.public.users postgresql://localhost/copy",
        "penstock cdc apply log:./data users sqlite:./users.db --format plain --key id",
    ),
)
def apply(
    stream: Annotated[str, typer.Argument(metavar="STREAM_URL", help="Where the topic is: log:./data.")],
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="A topic that a capture writes, or any of rows: --format plain.")
    ],
    target: Target,
    table: Annotated[
        str | None, typer.Option("--table", "-t", help="TABLE or SCHEMA.TABLE.  [default: the last part of the topic]")
    ] = None,
    form: Annotated[
        ChangeFormat, typer.Option("--format", help="What the capture wrote; plain: JSON objects under text keys.")
    ] = ChangeFormat.DEBEZIUM,
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column for the records' keys, with --format plain.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Tells appliers into one database apart.  [default: topic and table]")
    ] = None,
    create: Annotated[bool, typer.Option(help="Create the table if it is missing.")] = True,
    evolve: Annotated[bool, typer.Option(help="Add columns that are missing.")] = True,
    batch: Annotated[int, typer.Option(min=1, help="Changes applied together, at most.")] = 1_000,
    once: Annotated[bool, typer.Option("--once", help="End when the changes that exist now are applied.")] = False,
    continue_after_loss: Annotated[
        bool,
        typer.Option(
            "--continue-after-loss",
            help="Go on although the topic no longer has all deletions; then repair: penstock cdc compare --repair.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only warnings and errors.")] = False,
) -> None:
    """Apply the changes of a topic to a table until stopped: upserts, deletes and truncates, exactly-once.

    Rows and pointers are written in one transaction of the database. Killed at any moment, it continues where it was.
    """
    show_log_of("penstock", quiet=True)
    table = topic.rpartition(".")[2] if table is None else table
    with Applier(
        stream,
        topic,
        target,
        table=table,
        format=form,
        key=key,
        name=name,
        create=create,
        evolve=evolve,
        batch=batch,
        continue_after_loss=continue_after_loss,
    ) as applier:
        with on_stop_signals(lambda _: applier.stop(), once=True):
            applier.run(end=Position.LATEST if once else None)
        if not quiet:
            say(f"{applier.applied:,} changes applied to {table}")


@app.command(
    "compare",
    epilog=examples(
        "penstock cdc compare postgresql://localhost/shop postgresql://localhost/copy --table users --repair"
    ),
)
def compare(
    source: Source,
    target: Target,
    table: Annotated[str, typer.Option("--table", "-t", help="The table of the source, and of the target.")],
    target_table: Annotated[str | None, typer.Option(help="The table of the target, if it has another name.")] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Make rows of the target those of the source.")] = False,
    reads: Annotated[int, typer.Option(min=1, help="How often a row must differ to count as drifted.")] = 3,
    pause: Annotated[
        str, typer.Option(metavar="DURATION", help="Between these reads: longer than changes are on their way.")
    ] = "1s",
    rows: Annotated[int, typer.Option(min=1, max=5_000, help="Rows in a range of keys.")] = 1_000,
    as_json: AsJson = False,
) -> None:
    """Compare the rows of a table with its copy while changes flow, and repair the copy by ranges of keys.

    The exit code is 1 if differences are left.
    """
    found = compare_tables(
        source,
        target,
        table=table,
        target_table=target_table,
        repair=repair,
        reads=reads,
        pause_s=seconds(pause, "--pause"),
        page_rows=rows,
    )
    if as_json:
        print_json(found)
    else:
        if found.drifted:
            print_table(
                ("row", "drift", "columns", "repaired"),
                ((each.key, each.kind, ", ".join(each.columns), each.is_repaired) for each in found.drifted),
            )
        say(f"{found.rows:,} rows compared, {found.late:,} were late, {len(found.drifted):,} have drifted")
    if not found.is_same:
        raise typer.Exit(1)


@app.command("status", epilog=examples("penstock cdc status postgresql://localhost/shop --json"))
def status(
    source: Source,
    name: Annotated[str | None, typer.Option(help="Only the capture with this name.")] = None,
    duration: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long to measure the rate of writes; 0s for none.")
    ] = "2s",
    as_json: AsJson = False,
) -> None:
    """Show how far the captures of a database are behind, and when it will lose changes that they have not read."""
    found = capture_status(source, name, seconds(duration, "--for"))
    if as_json:
        print_json(found)
    elif not found:
        say("This database has no replication slot of a capture.")
    else:
        print_table(_STATUS_COLUMNS, map(_cells, found), numbers=_STATUS_COLUMNS[3:])
    if any(each.is_lost for each in found):
        say("Changes were lost: take a new snapshot with `penstock cdc ... --snapshot again`.")
        raise typer.Exit(1)


@app.command("snapshot", epilog=examples("penstock cdc snapshot shop log:./data --table public.users --wait"))
def snapshot(
    name: CaptureName,
    stream: CaptureStream,
    table: Annotated[str, typer.Option("--table", "-t", help="TABLE or SCHEMA.TABLE, which the capture has.")],
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is done.")] = False,
) -> None:
    """Let a capture read all rows of one table again, while its changes go on.

    Each row becomes a record of its topic, in ranges of keys; a newer record is never replaced. A capture that does not
    run begins when it is started; killed, it continues. Rows that only the topic has stay there.
    """
    with open_connection(stream) as connection:
        is_done = request_snapshot(connection, name, table)
        if not wait:
            say(f"Capture {name} will read {table} again; with --wait, this command returns when it has.")
            return
        wait_until_done(is_done)
    say(f"Capture {name} has read {table} again.")


@app.command("forget", epilog=examples("penstock cdc forget shop log:./data"))
def forget(name: CaptureName, stream: CaptureStream) -> None:
    """Forget a capture that was stopped for good: its position, and what it reported for penstock lag and alerts.

    Its topics stay, and so does its replication slot, which keeps the database's log: drop it in the database.
    """
    with open_connection(stream) as connection:
        observer = CaptureObserver()
        observer.use(connection)
        known = observer.look(connection.topics(), time.time_ns() // 1_000_000).get(name)
        if known is not None and known.phase in RUNNING_PHASES:
            raise ConfigError(f"capture {name!r} runs ({known.phase}): stop it first")
        forget_capture(connection, name)
    say(f"Capture {name} is forgotten. If its database still has its replication slot, drop it there.")


def _cells(each: CaptureStatus) -> tuple[object, ...]:
    loss = "unknown" if each.room_bytes is None else "-"
    if each.is_lost:
        loss = "lost"
    elif each.time_to_loss_s is not None:
        loss = duration_text(each.time_to_loss_s)
    return (
        each.name,
        each.slot,
        each.state,
        size_text(each.behind_bytes),
        size_text(each.kept_bytes),
        size_text(each.room_bytes),
        None if each.written_bytes_per_s is None else size_text(round(each.written_bytes_per_s)),
        loss,
    )


@contextlib.contextmanager
def _shown(capture: Capture, stream: str, quiet: bool) -> Iterator[None]:
    """Show the progress while the block runs: bars for the snapshot, then a line."""
    if quiet:
        yield
        return
    ended = threading.Event()
    shower = threading.Thread(
        target=_show, args=(capture, without_password(stream), ended), name="penstock-cdc-progress", daemon=True
    )
    shower.start()
    try:
        yield
    finally:
        ended.set()
        shower.join()


def _show(capture: Capture, stream: str, ended: threading.Event) -> None:
    is_terminal = sys.stderr.isatty()
    progress = capture.progress
    while not progress.guarantee and not ended.wait(0.05):
        pass
    if progress.guarantee:
        say(f"{capture.source_url} to {stream}, {progress.guarantee}")
    if is_terminal:
        _show_snapshot(progress, ended)
    while not ended.wait(_SHOWN_EVERY_S if is_terminal else _LOGGED_EVERY_S):
        line = _line(progress)
        if is_terminal:
            sys.stderr.write(f"\r\x1b[J{line}")
            sys.stderr.flush()
        else:
            say(line)
    if is_terminal:
        sys.stderr.write("\r\x1b[J")


def _show_snapshot(progress: CaptureProgress, ended: threading.Event) -> None:
    """A bar for each table, until all are read. How many rows a table has is the database's estimate."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        tasks: dict[str, TaskID] = {}
        while progress.phase in ("starting", "snapshot") and not ended.wait(0.2):
            for name, table in list(progress.tables.items()):
                total = table.rows if table.is_done else max(table.total or 0, table.rows) or None
                if name not in tasks:
                    tasks[name] = bar.add_task(name, total=total)
                bar.update(tasks[name], completed=table.rows, total=total)


def _line(progress: CaptureProgress) -> str:
    rows = sum(table.rows for table in progress.tables.values())
    parts = [progress.phase, f"{rows:,} rows read", f"{progress.changes:,} changes"]
    if progress.position:
        parts.append(f"at {progress.position}")
    if progress.lag_bytes is not None:
        parts.append(f"{size_text(progress.lag_bytes)} behind")
    if progress.last_change_ms is not None:
        age_s = max(0.0, time.time() - progress.last_change_ms / 1000)
        parts.append(f"last change {time_text(progress.last_change_ms)} ({duration_text(age_s)} ago)")
    return ", ".join(parts)
