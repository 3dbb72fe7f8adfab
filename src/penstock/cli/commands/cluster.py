"""`penstock cluster`: a real Apache Kafka of several brokers on this machine, to be broken on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from penstock.cli.options import AsJson, Configs, examples, pairs
from penstock.cli.output import print_json, report, say, size_text
from penstock.cli.stream import silence_log
from penstock.cli.tables import at_work, print_table
from penstock.cluster.brokers import Cluster
from penstock.cluster.drills import DRILLS, run
from penstock.cluster.drills.stage import Outcome
from penstock.cluster.networks import CUT_OFFS, Network, best_network, has_namespaces, tells_processes
from penstock.cluster.plans import DEFAULT_PORT, FEWEST_HEAP_MB, MIN_IN_SYNC, REPLICATION_FACTOR, Plan
from penstock.cluster.status import ClusterStatus, status_of
from penstock.cluster.temporary import temporary_cluster
from penstock.errors import ClusterError, ConfigError
from penstock.model.text import count_text

app = typer.Typer(
    name="cluster",
    rich_markup_mode=None,
    help="Run a real Apache Kafka of several brokers on this machine, break it on purpose, and drill what happens.",
    no_args_is_help=True,
)

NETWORKS: Final = ("auto", "loopback", "proxies", "namespaces")
LONGEST_LIST: Final = 10
WATCH_S: Final = 0.5

Folder = Annotated[
    Path,
    typer.Option(
        envvar="PENSTOCK_CLUSTER", metavar="FOLDER", help="The folder of the cluster: its state and its data."
    ),
]
DEFAULT_FOLDER: Final = Path("cluster")
Number = Annotated[int, typer.Argument(metavar="BROKER", help="The number of the broker: 1, 2, 3.")]
Jars = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="The jars of another Kafka: the `libs` folder of its distribution."),
]


@app.command("up", epilog=examples("penstock cluster up", "penstock cluster up --brokers 1 --replication-factor 1"))
def up(
    folder: Folder = DEFAULT_FOLDER,
    brokers: Annotated[int, typer.Option(min=1, help="How many brokers to start.")] = 3,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="How many replicas new partitions have. Default: 3, or one per broker.")
    ] = None,
    min_insync_replicas: Annotated[
        int | None, typer.Option(min=1, help="How many replicas a write with acks=all needs. Default: one less.")
    ] = None,
    port: Annotated[int, typer.Option(help="The port of broker 1; the others listen on the next ones.")] = DEFAULT_PORT,
    network: Annotated[
        str,
        typer.Option(
            metavar="|".join(NETWORKS),
            help="Where brokers listen: on 127.0.0.1; there behind proxies, which can isolate them; or each in a "
            "network namespace (as root). auto: namespaces if they can be created, else proxies.",
        ),
    ] = "auto",
    heap_mb: Annotated[int, typer.Option(min=FEWEST_HEAP_MB, help="The heap of each broker, in MB.")] = 160,
    racks: Annotated[str, typer.Option(metavar="A,B,...", help="The racks of the brokers, in turn.")] = "a,b,c",
    config: Configs = None,
    jars: Jars = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until interrupted, then take the cluster down.")
    ] = False,
) -> None:
    """Start Apache Kafka with several brokers, each of them also a controller, and print its URL.

    The brokers keep running when the command returns; `penstock cluster down` stops them. Their data stays in the
    folder, and the next `up` continues with it. Kafka's jars are fetched with Maven once, into $PENSTOCK_CACHE.
    """
    factor = replication_factor or min(3, brokers)
    plan = Plan(
        brokers=brokers,
        replication_factor=factor,
        min_insync_replicas=min_insync_replicas or max(1, factor - 1),
        port=port,
        network=_network(network),
        heap_mb=heap_mb,
        racks=tuple(name.strip() for name in racks.split(",") if name.strip()) or ("a",),
        settings=pairs(config, "--config"),
    )
    began_s = time.monotonic()
    with at_work("starting Apache Kafka") as tell:
        cluster = Cluster.up(folder, plan, jars, tell)
    settings = plan.kafka_settings()
    memory = sum(cluster.memory_bytes(number) or 0 for number in cluster.numbers)
    say(
        f"{count_text(brokers, 'broker')} ready after {time.monotonic() - began_s:.1f} s, with {size_text(memory)} of "
        f"memory; replication factor {settings[REPLICATION_FACTOR]}, min.insync.replicas {settings[MIN_IN_SYNC]}"
    )
    typer.echo(cluster.url)
    if foreground:
        _stay(cluster)


def _network(name: str) -> Network:
    if name == "auto":
        return best_network()
    if name == "loopback":
        return "loopback"
    if name == "proxies":
        if not tells_processes():
            raise ConfigError(
                "--network proxies needs /proc/net/tcp, as on Linux, to tell which process a connection comes from; "
                "--network loopback does not, but its brokers cannot be isolated"
            )
        return "proxies"
    if name == "namespaces":
        if not has_namespaces():
            raise ConfigError("--network namespaces needs root and the `ip` program; --network loopback does not")
        return "namespaces"
    raise typer.BadParameter(f"{name!r} is not one of {', '.join(NETWORKS)}", param_hint="--network")


def _stay(cluster: Cluster) -> None:
    say("the brokers run until Ctrl-C")
    try:
        while cluster.running():
            time.sleep(WATCH_S)
        say("all brokers have ended")
    finally:
        Cluster.at(cluster.folder).down()


@app.command("down", epilog=examples("penstock cluster down", "penstock cluster down --delete"))
def down(
    folder: Folder = DEFAULT_FOLDER,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the data of the brokers, too.")] = False,
) -> None:
    """Stop all brokers of the cluster. Their data stays, unless --delete is given."""
    cluster = Cluster.at(folder)
    with at_work("stopping the brokers"):
        cluster.down(delete=delete)
    say(f"the cluster is down; its data was {'removed' if delete else f'kept in {cluster.folder}'}")


@app.command("status", epilog=examples("penstock cluster status", "penstock cluster status --json"))
def status(folder: Folder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """Show each broker: its state, what it leads, and whether its replicas are in sync."""
    found = status_of(Cluster.at(folder))
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(found: ClusterStatus) -> None:
    rows = [
        (
            each.broker,
            each.state,
            each.address,
            each.rack,
            each.pid,
            size_text(each.memory_bytes),
            "active" if each.is_controller else "",
            each.leader_of,
            each.out_of_sync,
        )
        for each in found.brokers
    ]
    numbers = ("broker", "pid", "memory", "leader of", "out of sync")
    columns = ("broker", "state", "address", "rack", "pid", "memory", "controller", "leader of", "out of sync")
    print_table(columns, rows, numbers=numbers)
    if found.controller is None:
        say("no active controller: leaders are not elected until a majority of the brokers runs and reaches each other")
    else:
        say(f"controller {found.controller}, epoch {found.controller_epoch}; {found.url}")
    without, behind = found.without_leader, found.with_replicas_out_of_sync
    if without is None or behind is None:
        say(
            "no broker answered: it is not known whether partitions have leaders and replicas are in sync; see "
            f"output.txt in the broker-* folders of {found.folder}"
        )
    if without:
        say(f"without a leader: {_names([f'{each.topic}-{each.number}' for each in without])}")
    if behind:
        names = [f"{each.topic}-{each.number} {each.out_of_sync}" for each in behind]
        say(f"with replicas out of sync: {_names(names)}")


def _names(names: list[str]) -> str:
    more = len(names) - LONGEST_LIST
    return ", ".join(names[:LONGEST_LIST]) + (f", and {more} more" if more > 0 else "")


@app.command("kill", epilog=examples("penstock cluster kill 2"))
def kill(broker: Number, folder: Folder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """End a broker at once, as in a crash (SIGKILL)."""
    _change(folder, broker, lambda cluster: cluster.kill(broker), "was killed", as_json)


@app.command("stop", epilog=examples("penstock cluster stop 2"))
def stop(broker: Number, folder: Folder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """Stop a broker in order: it hands its leaderships over first (SIGTERM)."""
    _change(folder, broker, lambda cluster: cluster.stop(broker), "was stopped", as_json)


@app.command("start", epilog=examples("penstock cluster start 2"))
def start(broker: Number, folder: Folder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """Start a broker that was killed or stopped, on its data; return when it serves, or at once if it is isolated."""
    cluster = Cluster.at(folder)
    began_s = time.monotonic()
    with at_work(f"starting broker {broker}"):
        cluster.start(broker)
    cut_off = cluster.broker(broker).isolated_from
    done = "serves again" if cut_off is None else f"runs, but is isolated from {cut_off}"
    _report(broker, done, began_s, as_json)
    if cut_off is not None:
        say(f"it serves after `penstock cluster heal {broker}`")


@app.command("isolate", epilog=examples("penstock cluster isolate 2 --from peers", "penstock cluster isolate 2"))
def isolate(
    broker: Number,
    cut_off: Annotated[
        str, typer.Option("--from", metavar="|".join(CUT_OFFS), help="From whom it is cut off.")
    ] = "all",
    folder: Folder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Cut a broker off from its peers, from its clients, or from all, while it keeps running."""
    chosen = next((each for each in CUT_OFFS if each == cut_off), None)
    if chosen is None:
        raise typer.BadParameter(f"{cut_off!r} is not one of {', '.join(CUT_OFFS)}", param_hint="--from")
    _change(folder, broker, lambda cluster: cluster.isolate(broker, chosen), f"is isolated from {chosen}", as_json)


@app.command("heal", epilog=examples("penstock cluster heal 2", "penstock cluster heal"))
def heal(
    broker: Annotated[int | None, typer.Argument(metavar="[BROKER]", help="Its number. Default: all.")] = None,
    folder: Folder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Connect an isolated broker again, or all of them; one that a killed drill left paused continues."""
    cluster = Cluster.at(folder)
    for number in cluster.numbers if broker is None else [broker]:
        cluster.heal(number)
    who = "all brokers are" if broker is None else f"broker {broker} is"
    report({"healed": cluster.numbers if broker is None else [broker]}, f"{who} connected", as_json=as_json)


@app.command("drill", epilog=examples("penstock cluster drill", "penstock cluster drill leader-failover --seed 7"))
def drill(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which one. Default: list them.")] = None,
    seed: Annotated[int, typer.Option(help="Determines which broker plays which part.")] = 1,
    folder: Folder = DEFAULT_FOLDER,
    jars: Jars = None,
    as_json: AsJson = False,
) -> None:
    """Break the cluster in one way, count what was lost and repeated, and explain it; without a name, list the drills.

    Uses the cluster of the folder if it is up, else starts one in a temporary folder and takes it down in the end. The
    exit code is 0 only if everything that the drill claims held.
    """
    if name is None:
        if as_json:
            print_json([{"name": each.name, "summary": each.summary} for each in DRILLS.values()])
        else:
            print_table(("drill", "what happens"), [(each.name, each.summary) for each in DRILLS.values()])
        return
    if name not in DRILLS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(DRILLS)}", param_hint="NAME")
    silence_log()
    began_s = time.monotonic()
    with at_work(f"drill {name}") as tell, _cluster_for(name, folder, jars, tell) as cluster:
        outcome = run(name, cluster, seed, tell)
    if as_json:
        print_json({"drill": name, "seed": seed, "holds": outcome.holds, **msgspec.to_builtins(outcome)})
    else:
        _show_outcome(outcome, time.monotonic() - began_s)
    if not outcome.holds:
        wrong = [claim for claim, held in outcome.claims.items() if not held]
        raise ClusterError(f"with seed {seed}, this did not hold: {'; '.join(wrong)}")


@contextmanager
def _cluster_for(name: str, folder: Path, jars: Path | None, tell: Callable[[str], None]) -> Iterator[Cluster]:
    if (folder / "cluster.json").exists():
        yield Cluster.at(folder)
        return
    with temporary_cluster(jars, tell, disk_mb=DRILLS[name].disk_mb) as cluster:
        yield cluster


def _show_outcome(outcome: Outcome, took_s: float) -> None:
    if outcome.tallies:
        counts = ("sent", "acknowledged", "refused", "lost", "repeated", "longest wait")
        rows = [
            (
                each.case,
                *(f"{count:,}" for count in (each.sent, each.acknowledged, each.refused, each.lost, each.repeated)),
                f"{each.longest_wait_s:.1f} s",
            )
            for each in outcome.tallies
        ]
        print_table(("case", *counts), rows, numbers=counts)
        typer.echo("")
    print_table(("what", "found"), [*outcome.findings, ("the whole drill", f"{took_s:.1f} s")])
    typer.echo("")
    print_table(("claim", ""), [(claim, "ok" if held else "WRONG") for claim, held in outcome.claims.items()])
    typer.echo(f"\n{outcome.why}")


def _change(folder: Path, number: int, change: Callable[[Cluster], None], done: str, as_json: bool) -> None:
    cluster = Cluster.at(folder)
    began_s = time.monotonic()
    change(cluster)
    _report(number, done, began_s, as_json)


def _report(number: int, done: str, began_s: float, as_json: bool) -> None:
    took_s = time.monotonic() - began_s
    report(
        {"broker": number, "done": done, "seconds": took_s}, f"broker {number} {done} ({took_s:.1f} s)", as_json=as_json
    )
