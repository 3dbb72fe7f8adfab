"""The process of a supervised program, and all that it has started."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from penstock.model.processes import session_members, signal_all
from penstock.supervising.reporting import VARIABLE, AnyReport, LastReport, Report
from penstock.supervising.restarts import Cause, Ending

logger = logging.getLogger(__name__)

ALONE_S: Final = 3.0
"""How long what a dead program leaves running, such as Spark's JVM, may take to notice that before it gets SIGTERM."""
REST_S: Final = 10.0
"""How long it may take to end, before it is killed."""
_READ_BYTES: Final = 65536
_MOST_LAST_READS: Final = 1_000
_LONGEST_REPORT: Final = 1 << 16
_LAST_LINE: Final = 500
_REPORTS: Final[msgspec.json.Decoder[AnyReport]] = msgspec.json.Decoder(Report | LastReport)


class Child:
    """One run of a program: a process that leads a session of its own, started on construction.

    After its death, `has_ended` is true only once everything in its session has ended, too.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], now_s: float, hear: Callable[[bytes], None]
    ) -> None:
        """`hear` is called with its output as it comes."""
        self.started_s = now_s
        self.report: Report | None = None
        self.last_report: LastReport | None = None
        self.reported_s = now_s
        self.stuck_since_s: float | None = None
        self._was_ready = False
        self._hear = hear
        self._received = b""
        self._last_line = b""
        self._dead_since_s: float | None = None
        self._is_rest_asked = False
        reports, their_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[their_end],
                env={**environment, "PYTHONUNBUFFERED": "1", VARIABLE: f"{os.getpid()}:{their_end}"},
            )
        except BaseException:
            os.close(reports)
            raise
        finally:
            os.close(their_end)
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._reports = reports
        for fd in self.fds:
            os.set_blocking(fd, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def fds(self) -> tuple[int, int]:
        """The file descriptors that become readable when there is something to `read`."""
        return self._output, self._reports

    def read(self, fd: int, now_s: float) -> bool:
        """Take output, or reports. Returns whether there will be no more."""
        data = _read(fd)
        if data:
            take = self._take_output if fd == self._output else self._take_reports
            take(data, now_s)
        return data == b""

    def _take_output(self, data: bytes, _: float) -> None:
        self._hear(data)
        lines = [line for line in data.splitlines() if line.strip()]
        if lines:
            self._last_line = lines[-1][:_LAST_LINE]

    def _take_reports(self, data: bytes, now_s: float) -> None:
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        self._received = self._received[:_LONGEST_REPORT]
        for line in lines:
            try:
                report = _REPORTS.decode(line)
            except msgspec.MsgspecError:
                logger.warning("process %s sent a report that cannot be read", self.pid)
                continue
            self.reported_s = now_s
            if isinstance(report, LastReport):
                self.last_report = report
            else:
                self.report = report
                self._was_ready = self._was_ready or not report.problems
                self.stuck_since_s = (self.stuck_since_s or now_s) if report.stuck else None

    @property
    def has_died(self) -> bool:
        """Whether the program itself has died, as `has_ended` has seen."""
        return self._dead_since_s is not None

    @property
    def progress(self) -> int:
        reports = (self.report, self.last_report)
        return max((report.progress for report in reports if report is not None), default=0)

    def ask_to_end(self) -> None:
        """Send SIGTERM to the program alone, which ends the processes that it has started."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the program and all processes of its session."""
        self._signal(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        signal_all(list(session_members(self.pid)), signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def has_ended(self, now_s: float) -> bool:
        """Whether the child and all processes of its session have ended. Once the child is dead, the others are
        terminated, and killed after `REST_S`."""
        if self._process.returncode is None and not self._is_dead():
            return False
        if self._dead_since_s is None:
            self._dead_since_s = now_s
        if rest := list(session_members(self.pid)):
            dead_for_s = now_s - self._dead_since_s
            if dead_for_s >= REST_S:
                signal_all(rest, signal.SIGKILL)
            elif dead_for_s >= ALONE_S and not self._is_rest_asked:
                self._is_rest_asked = True
                signal_all(rest, signal.SIGTERM)
            return False
        self._process.wait()
        return True

    def _is_dead(self) -> bool:
        """Whether the program is dead. It is not reaped, so that its id, which is that of its session, stays its own
        until the session has ended."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def close(self, now_s: float) -> Ending:
        """Take the last output, and say how it ended."""
        for fd, take in ((self._output, self._take_output), (self._reports, self._take_reports)):
            for _ in range(_MOST_LAST_READS):  # a process outside the session may have the pipe, and write for ever
                if not (data := _read(fd)):
                    break
                take(data, now_s)
        assert self._process.stdout is not None
        self._process.stdout.close()
        os.close(self._reports)
        code = self._process.wait()
        last = self.last_report
        error = last.error if last is not None else self._last_line.decode(errors="replace").strip() or None
        if code < 0 and last is None:
            error = None  # its last line was about something else
        cause = last.cause if last is not None else Cause.OTHER
        return Ending(code, error, cause, self.progress > 0, now_s - self.started_s, self._was_ready)


def _read(fd: int) -> bytes | None:
    """The bytes that can be read now; b"" at the end, None when there are none yet."""
    try:
        return os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None
