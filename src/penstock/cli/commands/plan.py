"""`penstock plan`: the number of partitions, disks, workers, brokers and cores, with the arithmetic."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from penstock.cli.options import AsJson, examples
from penstock.cli.output import print_json
from penstock.cli.quantities import rate_per_s, seconds, size_bytes
from penstock.observe.capacity import Demand, Plan
from penstock.observe.capacity import plan as make

app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock plan --rate 5000/s --size 1KB --retention 7d --readers 3",
    "penstock plan --rate 10M/day --size 400B --retention 30d --handler-ms 5 --keys 20000",
    "penstock plan --rate 80k/s --size 1KB --retention 7d --readers 3 --replication 3 --disk 4TB --json",
)


@app.command("plan", epilog=EXAMPLES)
def plan(
    rate: Annotated[str, typer.Option(metavar="RATE", help="The peak rate of records: 5000/s, 300k/min, 10M/day.")],
    size: Annotated[
        str, typer.Option(metavar="SIZE", help="The size of a record as sent: 100B, 1KB (1000 bytes), 1KiB (1024).")
    ],
    retention: Annotated[str, typer.Option(metavar="TIME", help="How long records are kept: 12h, 7d.")],
    readers: Annotated[int, typer.Option(min=0, help="Groups that each read everything.")] = 1,
    handler_ms: Annotated[
        float | None, typer.Option(min=0, metavar="MS", help="How long the slowest handler takes for a record.")
    ] = None,
    keys: Annotated[
        int | None, typer.Option(min=1, help="How many different keys there are, if order by key matters.")
    ] = None,
    replication: Annotated[int, typer.Option(min=1, help="Copies of each record; more than 1 needs Kafka.")] = 1,
    disk: Annotated[str | None, typer.Option(metavar="SIZE", help="The disk of one machine: 500GB, 4TB.")] = None,
    as_json: AsJson = False,
) -> None:
    """Answer capacity questions, each with its arithmetic and the measured figures behind it."""
    made = make(
        Demand(
            rate_per_s=rate_per_s(rate, "--rate"),
            size_bytes=size_bytes(size, "--size"),
            retention_s=seconds(retention, "--retention"),
            readers=readers,
            handler_ms=handler_ms,
            keys=keys,
            replication=replication,
            disk_bytes=size_bytes(disk, "--disk") if disk is not None else None,
        )
    )
    if as_json:
        print_json(made)
    else:
        _show(made)


def _show(made: Plan) -> None:
    width = max(len(line.what) for line in made.lines)
    narrow = max(len(line.text) for line in made.lines)
    typer.secho(f"{made.verdict[0].upper()}{made.verdict[1:]}.", bold=True)
    for warning in made.warnings:
        typer.secho(f"Warning: {warning}.", fg="yellow")
    typer.echo("")
    for line in made.lines:
        typer.echo(f"{line.what:<{width}}  {line.text:>{narrow}}  = {line.how}")
    typer.echo("")
    typer.echo("The figures behind it; yours may differ, so measure with `make bench`:")
    for figure in made.figures:
        value = f"{figure.value:,.0f}" if figure.value >= 10 else f"{figure.value:g}"
        typer.echo(f"  {value:>13} {figure.unit:<20} {figure.what} ({figure.where})")
