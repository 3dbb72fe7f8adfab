"""`penstock up`: run apps and pipelines together, and restart those that die."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.options import examples
from penstock.cli.output import say
from penstock.errors import ConfigError
from penstock.model.retry import Retry
from penstock.model.stop_signals import on_stop_signals
from penstock.observe.metrics.serving import serve
from penstock.observe.programs import LOGS
from penstock.supervising import Program, RestartPolicy, Supervisor, programs_in
from penstock.supervising.finding import uses_spark
from penstock.supervising.supervisor import DRAIN_S
from penstock.supervising.systemd import unit_file

app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock up app.py usage.py",
    "penstock up . --health 127.0.0.1:9470",
    "penstock up . --health 127.0.0.1:9470 --systemd ./shop.service",
)
_MB: Final = 1024 * 1024


@app.command("up", epilog=EXAMPLES)
def up(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE.py|FOLDER...",
            help="Programs as for penstock run, or folders: the files that create an App, a Pipeline or a LakeSink.",
        ),
    ],
    health: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve /healthz, /readyz and /programs, the state as JSON, there."),
    ] = None,
    logs: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder of the logs: one file for each program, rotated.")
    ] = LOGS,
    log_mb: Annotated[
        int, typer.Option(min=1, help="The size at which a log is rotated, in MB; five parts are kept.")
    ] = 10,
    drain: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="How long all programs together may take to end after SIGTERM."),
    ] = DRAIN_S,
    give_up_after: Annotated[
        int,
        typer.Option(min=1, help="Give up a program after this many deaths in a row without progress."),
    ] = 10,
    restart_delay: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="The delay before the first restart; it doubles, up to a minute. A program that worked for ten "
            "seconds is started again at once.",
        ),
    ] = 1.0,
    systemd: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Run nothing: write a unit file of systemd that runs this command."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow a --health that other machines can reach: there is no login.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show the output of the programs.")] = False,
    class_archive: Annotated[
        bool,
        typer.Option(
            help="If a program uses Spark: once all programs are ready, run `penstock spark archive` at low priority, "
            "so that a restart takes less time."
        ),
    ] = True,
) -> None:
    """Run apps and pipelines together, each in a process of its own, and restart those that die.

    A program that cannot be helped by a restart is given up; the others continue. SIGTERM and Ctrl-C end the programs
    in reverse order. The command ends when all programs have ended: with 0, or with 1 if one was given up or killed.
    """
    programs = programs_in(paths)
    if systemd is not None:
        options = ["--logs", str(logs.absolute()), "--log-mb", str(log_mb), "--drain", f"{drain:g}"]
        options += ["--give-up-after", str(give_up_after), "--restart-delay", f"{restart_delay:g}"]
        options += ["--health", health] if health is not None else []
        options += ["--insecure"] if insecure else []
        options += ["--quiet"] if quiet else []
        options += [] if class_archive else ["--no-class-archive"]
        files = [str(each.file) for each in programs]
        command = [sys.executable, "-m", "penstock.cli", "up", *options, *files]
        _write_unit(systemd, unit_file(command, [each.name for each in programs], drain))
        return
    supervise_programs(
        programs,
        logs=logs,
        health=health,
        insecure=insecure,
        quiet=quiet,
        drain_s=drain,
        log_bytes=log_mb * _MB,
        policy=RestartPolicy(
            backoff=Retry(None, first_delay_s=restart_delay, max_delay_s=max(60.0, restart_delay)),
            give_up_after=give_up_after,
        ),
        class_archive=class_archive,
    )


def supervise_programs(
    programs: Sequence[Program],
    *,
    logs: Path,
    health: str | None,
    insecure: bool = False,
    quiet: bool = False,
    drain_s: float = DRAIN_S,
    log_bytes: int = 10 * _MB,
    policy: RestartPolicy | None = None,
    class_archive: bool = True,
) -> None:
    """Supervise these programs until all have ended. Exits with 1 when one of them did not end well."""
    screen = _Screen(programs)
    with contextlib.ExitStack() as stack:
        supervisor = Supervisor(
            programs,
            logs=logs.expanduser().absolute(),
            policy=policy,
            drain_s=drain_s,
            log_bytes=log_bytes,
            on_event=screen.show_event,
            on_output=None if quiet else screen.show_output,
        )
        stack.callback(supervisor.close)
        if health is not None:
            server = stack.enter_context(
                serve(
                    health,
                    probes={"/healthz": supervisor.unhealthy, "/readyz": supervisor.unready},
                    documents={"/programs": supervisor.document},
                    insecure=insecure,
                )
            )
            say(f"penstock: health is at http://{server.address}/programs")
        if class_archive and any(uses_spark(each.file) for each in programs):
            stack.enter_context(_ArchiveMaker(supervisor))
        with on_stop_signals(_drain_then_kill(supervisor)):
            ended_well = supervisor.run()
    failed = [each.name for each in supervisor.status() if each.state == "failed"]
    if failed:
        say(f"penstock: given up: {', '.join(failed)}. Their logs are in {logs}")
    if not ended_well:
        raise typer.Exit(1)


class _ArchiveMaker:
    """Has the archive of Spark's classes made once all programs are ready, unless it exists. Ends with its block."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._make, name="penstock-class-archive", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _make(self) -> None:
        while self._supervisor.unready():
            if self._ended.wait(_LOOK_S):
                return
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", "spark", "archive"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        with contextlib.suppress(OSError):  # it has just ended
            os.setpriority(os.PRIO_PGRP, process.pid, _LOWEST_PRIORITY)
        said: str | None = None
        while said is None:
            try:
                said = process.communicate(timeout=_LOOK_S)[1]
            except subprocess.TimeoutExpired:
                if self._ended.is_set():
                    said = _interrupted(process)
        if process.returncode and not self._ended.is_set():
            reason = (said.strip().splitlines() or ["it gave no reason"])[-1]
            say(f"penstock: no archive of Spark's classes, so restarts take longer: {reason}")


def _interrupted(process: subprocess.Popen[str]) -> str:
    """End a process and all of its group, by SIGINT, at which it removes what it has begun. What it said."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        return process.communicate(timeout=_END_S)[1]
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[1]


_LOOK_S: Final = 0.2
_END_S: Final = 10.0
_LOWEST_PRIORITY: Final = 19


class _Screen:
    """Shows events, and the output of programs line by line, with the name of the program before each line."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self._width = max((len(each.name) for each in programs), default=0)
        self._unfinished: dict[str, bytes] = {}

    def show_event(self, name: str, event: str) -> None:
        say(f"{name:{self._width}}  penstock: {event}")

    def show_output(self, name: str, data: bytes) -> None:
        *lines, rest = (self._unfinished.get(name, b"") + data).split(b"\n")
        self._unfinished[name] = rest[-_LONGEST_LINE:]
        for line in lines:
            say(f"{name:{self._width}}  {line.decode(errors='replace')}")


_LONGEST_LINE: Final = 64 * 1024


def _drain_then_kill(supervisor: Supervisor) -> Callable[[signal.Signals], None]:
    """A function that drains the programs at its first call, and kills them at the second."""
    calls = itertools.count()

    def stop(_: signal.Signals) -> None:
        if next(calls):
            supervisor.kill()
        supervisor.stop()

    return stop


def _write_unit(file: Path, text: str) -> None:
    file = file.expanduser().absolute()
    if file.suffix != ".service":
        raise typer.BadParameter(f"{file.name} must end in .service", param_hint="--systemd")
    try:
        with open(file, "x", encoding="utf-8") as unit:
            unit.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{file} exists: remove it first, or choose another file") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    say(
        f"{file} is written. Install it with: cp {file} /etc/systemd/system/ && systemctl daemon-reload && systemctl "
        f"enable --now {file.name}; without root in ~/.config/systemd/user/, with systemctl --user"
    )
