"""The supervisor: starts programs, starts those that die again, and ends all of them in order."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.abc import Clock
from penstock.errors import ConfigError
from penstock.model.clock import SystemClock
from penstock.model.closing import Closing
from penstock.model.text import duration_text
from penstock.observe.programs import STATUS_EVERY_S, ProgramState, ProgramStatus, SupervisorStatus
from penstock.supervising.child import Child
from penstock.supervising.finding import Program
from penstock.supervising.logs import FILE_BYTES, FILES, LogFolder
from penstock.supervising.restarts import Attempts, Cause, Ending, RestartPolicy

logger = logging.getLogger(__name__)

TICK_S: Final = 0.1
STUCK_S: Final = 30.0
"""How long a program may say that only a restart would help before it is restarted."""
SILENT_S: Final = 60.0
"""How long after its last report a program counts as not ready."""
DRAIN_S: Final = 60.0
HUNG_S: Final = 15.0
_PROGRESS_EVERY_S: Final = 1.0

Tell = Callable[[str, str], None]
"""Takes the name of a program, and an event or a line of its output."""


class Supervisor(Closing):
    """Runs programs until all have ended, or until `stop`.

    `run` does everything in the thread that calls it, which must live as long as the programs: the kernel ends them
    together with it. All other methods may be called from other threads and from signal handlers.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        logs: Path,
        policy: RestartPolicy | None = None,
        drain_s: float = DRAIN_S,
        log_bytes: int = FILE_BYTES,
        log_files: int = FILES,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        on_event: Tell | None = None,
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> None:
        """`drain_s` limits how long all programs together may take to end after `stop`, before the rest is killed."""
        if not programs:
            raise ConfigError("there is no program to run")
        if not drain_s >= 0:
            raise ConfigError(f"drain_s={drain_s!r} must not be negative")
        self._clock = clock or SystemClock()
        self._drain_s = drain_s
        self._on_event = on_event or (lambda name, event: logger.info("%s: %s", name, event))
        self._on_output = on_output
        self._logs = LogFolder(logs, [each.name for each in programs], file_bytes=log_bytes, files=log_files)
        chance = chance or random.Random()
        policy = policy or RestartPolicy()
        self._programs = [_Supervised(each, self, Attempts(policy, chance)) for each in programs]
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for each in (self._wake, self._woken):
            each.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._is_closed = False
        self._stopping = False
        self._killing = False
        self._drain_until_s: float | None = None
        self._beat_s = self._clock.monotonic_s()
        self._lock = threading.Lock()
        self._status: list[ProgramStatus] = [each.status(self._beat_s) for each in self._programs]
        self._written: list[ProgramStatus] = []
        self._written_s = float("-inf")
        self._write_status(self._beat_s)

    def run(self) -> bool:
        """Run the programs. Returns whether all of them ended well: none failed, and none had to be killed."""
        try:
            for each in self._programs:
                each.start()
            while not all(each.is_over for each in self._programs):
                self._step()
            return all(each.ended_well for each in self._programs)
        finally:
            self.close()

    def stop(self) -> None:
        """End all programs: the last one first, each when the one before has ended, within the time limit."""
        self._stopping = True
        self._wake_up()

    def kill(self) -> None:
        """Kill all programs at once."""
        self._stopping = self._killing = True
        self._wake_up()

    def status(self) -> list[ProgramStatus]:
        """The state of each program."""
        with self._lock:
            return list(self._status)

    def unhealthy(self) -> list[str]:
        """For `/healthz`: which programs were given up, and whether the supervisor itself hangs."""
        silent_s = self._clock.monotonic_s() - self._beat_s
        problems = [f"the supervisor has done nothing for {duration_text(silent_s)}"] if silent_s > HUNG_S else []
        return problems + [f"{each.name}: {each.last_error}" for each in self.status() if each.state == "failed"]

    def unready(self) -> list[str]:
        """For `/readyz`: which programs are not ready, and why."""
        return [
            f"{each.name}: {'; '.join(each.problems) or each.state}"
            for each in self.status()
            if not each.is_ready and each.state != "finished"
        ]

    def document(self) -> SupervisorStatus:
        """For `/programs`, and for the file that the console reads: the state of everything."""
        return SupervisorStatus(os.getpid(), socket.gethostname(), self._clock.wall_ms(), self.status())

    def _write_status(self, now_s: float) -> None:
        """Write the state beside the logs after each change, progress at most once a second, and now and then."""
        status = self.status()
        age_s = now_s - self._written_s
        has_changed = _without_counts(status) != _without_counts(self._written)
        if has_changed or age_s >= STATUS_EVERY_S or (age_s >= _PROGRESS_EVERY_S and status != self._written):
            self._written, self._written_s = status, now_s
            self._logs.write_status(msgspec.json.encode(self.document()))

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):  # it is full, so the loop wakes up; or closed, so it has ended
            self._wake.send(b"w")

    def _step(self) -> None:
        for key, _ in self._selector.select(TICK_S):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif key.data.read(key.fd, self._clock.monotonic_s()):
                self._selector.unregister(key.fd)
        now_s = self._clock.monotonic_s()
        _reap_orphans({each.child.pid for each in self._programs if each.child is not None})
        if self._stopping:
            self._drain(now_s)
        for each in self._programs:
            each.look(now_s)
        self._beat_s = now_s
        with self._lock:
            self._status = [each.status(now_s) for each in self._programs]
        self._write_status(now_s)

    def _drain(self, now_s: float) -> None:
        """Ask one program after the other to end. Each may take its share of the time that is left."""
        for each in self._programs:
            each.cancel_restart(now_s)
        if self._drain_until_s is None:
            self._drain_until_s = now_s + self._drain_s
        left = [each for each in reversed(self._programs) if not each.is_over]
        if not left:
            return
        if self._killing or now_s >= self._drain_until_s:
            for each in left:
                each.kill(now_s)
            return
        if left[0].ends_by_s is None:
            left[0].ask_to_end(now_s, now_s + (self._drain_until_s - now_s) / len(left))
        elif now_s >= left[0].ends_by_s:
            left[0].kill(now_s)

    def watch(self, child: Child) -> None:
        for fd in child.fds:
            self._selector.register(fd, selectors.EVENT_READ, child)

    def forget(self, child: Child) -> None:
        for fd in child.fds:
            with contextlib.suppress(KeyError):  # it has come to its end before
                self._selector.unregister(fd)

    def told(self, name: str, event: str) -> None:
        """Log an event, in the log of the program, too."""
        self._logs[name].write(f"--- penstock: {event}\n".encode())
        self._on_event(name, event)

    def take_output(self, name: str, data: bytes) -> None:
        self._logs[name].write(data)
        if self._on_output is not None:
            self._on_output(name, data)

    @property
    def clock(self) -> Clock:
        return self._clock

    def log_of(self, name: str) -> Path:
        return self._logs[name].path

    def close(self) -> None:
        """Leave nothing behind, also when an error ends the supervisor."""
        if self._is_closed:
            return
        self._is_closed = True
        for each in self._programs:
            if each.child is not None:
                each.kill(self._clock.monotonic_s())
        for each in self._programs:
            while each.child is not None:
                self._selector.select(TICK_S)
                each.look(self._clock.monotonic_s())
        with self._lock:
            self._status = [each.status(self._clock.monotonic_s()) for each in self._programs]
        self._write_status(self._clock.monotonic_s())
        self._selector.close()
        self._wake.close()
        self._woken.close()
        self._logs.close()


class _Supervised:
    """One program: its current process, or when it is started again."""

    def __init__(self, program: Program, supervisor: Supervisor, attempts: Attempts) -> None:
        self.program = program
        self.child: Child | None = None
        self.ends_by_s: float | None = None
        """When it is killed, once it was asked to end."""
        self._supervisor = supervisor
        self._attempts = attempts
        self._state: ProgramState = "starting"
        self._since_ms = supervisor.clock.wall_ms()
        self._restarts = 0
        self._restart_at_s: float | None = None
        self._last_error: str | None = None
        self._was_killed = False
        self._is_stuck = False

    @property
    def is_over(self) -> bool:
        return self._state in ("finished", "stopped", "failed")

    @property
    def ended_well(self) -> bool:
        return self._state in ("finished", "stopped") and not self._was_killed

    def start(self) -> None:
        name, now_s = self.program.name, self._supervisor.clock.monotonic_s()
        self._restart_at_s = None
        self._is_stuck = False
        command = [sys.executable, "-m", "penstock.cli", "run", *self.program.arguments]
        self._enter("starting")
        try:
            self.child = Child(command, os.environ, now_s, lambda data: self._supervisor.take_output(name, data))
        except OSError as error:
            self._died(Ending(1, f"it could not be started: {error.strerror or error}", Cause.OTHER, False, 0.0), now_s)
            return
        self._supervisor.watch(self.child)
        self._tell(f"started as process {self.child.pid}")

    def look(self, now_s: float) -> None:
        """Check whether it died or became ready, and restart it when the backoff is over."""
        child = self.child
        if child is None:
            if self._restart_at_s is not None and now_s >= self._restart_at_s:
                self._restarts += 1
                self.start()
            return
        if child.has_ended(now_s):
            self._supervisor.forget(child)
            self.child = None
            self._ended(child.close(now_s), now_s)
            return
        if self._state == "starting" and not self._problems(now_s):
            self._enter("running")
            self._tell("is ready")
        since_s = child.stuck_since_s
        if since_s is not None and now_s - since_s >= STUCK_S and not self._is_stuck and self.ends_by_s is None:
            self._is_stuck = True
            reasons = "; ".join(child.report.stuck) if child.report is not None else ""
            self._tell(f"is killed, as only a restart helps: {reasons}")
            child.kill()

    def _ended(self, ending: Ending, now_s: float) -> None:
        if self.ends_by_s is not None:
            self._enter("stopped")
            self._tell("was killed before it had ended" if self._was_killed else f"has ended ({ending})")
            return
        if ending.is_good:
            self._enter("finished")
            self._tell("has finished")
            return
        self._died(ending, now_s)

    def _died(self, ending: Ending, now_s: float) -> None:
        self._last_error = str(ending)
        decision = self._attempts.after(ending)
        after = f"died after {duration_text(ending.ran_s)} ({ending})"
        if decision.delay_s is None:
            self._enter("failed")
            self._tell(
                f"{after}. It is not started again: {decision.why}. See {self._supervisor.log_of(self.program.name)}"
            )
            return
        self._restart_at_s = now_s + decision.delay_s
        self._enter("restarting")
        self._tell(f"{after}. Restart {self._restarts + 1} in {duration_text(decision.delay_s)}")

    def ask_to_end(self, now_s: float, by_s: float) -> None:
        assert self.child is not None
        self.ends_by_s = by_s
        self._enter("stopping")
        self._tell(f"is asked to end, within {duration_text(by_s - now_s)}")
        self.child.ask_to_end()

    def kill(self, now_s: float) -> None:
        if self.child is not None and not self._was_killed:
            self._was_killed = True
            self.ends_by_s = self.ends_by_s if self.ends_by_s is not None else now_s
            self.child.kill()

    def cancel_restart(self, now_s: float) -> None:
        """Do not start the program again: the supervisor stops."""
        if self.child is None and not self.is_over:
            self._restart_at_s = None
            self._enter("stopped")

    def status(self, now_s: float) -> ProgramStatus:
        child = self.child
        problems = self._problems(now_s)
        return ProgramStatus(
            name=self.program.name,
            file=str(self.program.file),
            state=self._state,
            since_ms=self._since_ms,
            is_ready=not problems and self._state == "running",
            problems=problems,
            pid=None if child is None else child.pid,
            restarts=self._restarts,
            progress=0 if child is None else child.progress,
            last_error=self._last_error,
            restart_in_s=None if self._restart_at_s is None else round(max(0.0, self._restart_at_s - now_s), 3),
            log=str(self._supervisor.log_of(self.program.name)),
        )

    def _problems(self, now_s: float) -> list[str]:
        child = self.child
        if self._state == "failed":
            return [f"given up: {self._last_error}"]
        if self._state == "restarting":
            return [f"died, and is started again soon: {self._last_error}"]
        if child is None:
            return []
        if self._state == "stopping":
            return ["it is stopping"]
        if child.has_died:
            return ["it has died, and what it had started is ending"]
        if child.report is None:
            return ["it has not reported yet"]
        silent_s = now_s - child.reported_s
        silence = [f"it has not reported for {duration_text(silent_s)}"] if silent_s > SILENT_S else []
        return [*child.report.problems, *silence]

    def _enter(self, state: ProgramState) -> None:
        self._state = state
        self._since_ms = self._supervisor.clock.wall_ms()

    def _tell(self, event: str) -> None:
        self._supervisor.told(self.program.name, event)


def _without_counts(status: Sequence[ProgramStatus]) -> list[ProgramStatus]:
    """Without what changes all the time."""
    return [msgspec.structs.replace(each, progress=0, restart_in_s=None) for each in status]


def _reap_orphans(ours: set[int]) -> None:
    """As the first process of a container: take the exit codes of processes whose parents have died."""
    if os.getpid() != 1:
        return
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in ours:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
