"""The fork server: Spark's Python processes on a local master, forked from one that has done their imports.

Spark starts a Python process for every query with a Python source, for every daemon of workers, to plan Python sources
and for every stateful operator. Each would import PySpark, pyarrow and Penstock for half a second. The driver starts
this server together with the JVM; `python_client` stands in for Python and asks it for each process.

The protocol, over a socket in a private folder: the server sends READY; the client sends the length of its request in
four bytes, the request (by `marshal`: its arguments, environment, working folder, umask, ignored signals), and its
standard streams as file descriptors; the server forks and sends STARTED, or closes the connection to refuse. From then
on each byte from the client is a signal to send to the process, and the connection's end means that the client was
killed, so the process is killed too. The server answers the end of the process with its status in four bytes.

A forked process must behave like a new interpreter. So the server refuses a request that it cannot fulfil exactly, and
the client becomes an interpreter: a module that is not known here, another working folder, another PYTHONPATH, or any
variable that differs from the server's, other than those that Spark sets for each process, since an imported module may
have read it. A server with threads would fork processes with broken locks, so it ends if the imports have started any.

Nothing survives its owner. The server notices the death of the driver, and ends as soon as the JVM has ended the
processes it asked for. The kernel kills the processes if the server dies.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import logging
import marshal
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from penstock.model.processes import die_with
from penstock.spark.sessions.python_client import FORWARDED, READY, STARTED

SOCKET: Final = "python.sock"
LOG: Final = "python.log"
"""What the server could not import, and the first orders that it refused, with the reason."""

DAEMON: Final = "pyspark.daemon"
PROGRAMS: Final = (
    DAEMON,
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    "pyspark.sql.worker.analyze_udtf",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
)
"""The modules that Spark runs by `-m`."""
LIBRARIES: Final = (
    "pyarrow.compute",
    "penstock.spark.source.format",
    "penstock.spark.source.task_reading",
    "penstock.spark.state.stateful_functions",
)
"""What most processes need. Only some functions need pandas: their workers import it."""

OF_EACH_PROCESS: Final = frozenset(
    (
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE",
        "PYTHON_FAULTHANDLER_DIR",
        "PYTHON_TRACEBACK_DUMP_INTERVAL_SECONDS",
        "PYTHON_UDF_BATCH_SIZE",
        "PYTHON_UNIX_DOMAIN_ENABLED",
        "PYTHON_WORKER_FACTORY_PORT",
        "PYTHON_WORKER_FACTORY_SECRET",
        "PYTHON_WORKER_FACTORY_SOCK_DIR",
        "PYTHON_WORKER_FACTORY_SOCK_PATH",
        "PYSPARK_DRIVER_PYTHON",
        "PYSPARK_EXECUTOR_MEMORY_MB",
        "PYSPARK_PLANNER_MEMORY_MB",
        "PYSPARK_PYTHON",
        "PYSPARK_SPARK_SESSION_UUID",
        "SPARK_AUTH_SOCKET_TIMEOUT",
        "SPARK_BUFFER_SIZE",
        "SPARK_CONF_DIR",
        "SPARK_CONNECT_MODE",
        "SPARK_ENV_LOADED",
        "SPARK_HIDE_TRACEBACK",
        "SPARK_HOME",
        "SPARK_JOB_ARTIFACT_UUID",
        "SPARK_LOCAL_DIRS",
        "SPARK_PIPELINED_UDF",
        "SPARK_PIPELINED_UDF_QUEUE_DEPTH",
        "SPARK_PREFER_IPV6",
        "SPARK_PYTHON_RUNTIME",
        "SPARK_REUSE_WORKER",
        "SPARK_SCALA_VERSION",
        "SPARK_SIMPLIFIED_TRACEBACK",
        "SPARK_TRACEBACK_WITH_LOCALS",
        "JAVA_HOME",
        "OLDPWD",
        "PWD",
        "SHLVL",
        "_",
        "_PYSPARK_DRIVER_CONN_INFO_PATH",
    )
)
"""Variables that Spark or its start script set, and that PySpark reads when a process is at work, not at import."""
ARROW_THREADS: Final = "JE_ARROW_MALLOC_CONF"
"""Arrow's second allocator, which it does not use by default, would start a thread on import."""
MATH_THREADS: Final = "OMP_NUM_THREADS"
"""NumPy starts threads on import. Spark sets this to 1 for tasks; processes beside the driver get the same here."""

LONGEST_ORDER_BYTES: Final = 64 * 1024 * 1024
MAX_REASONS: Final = 100
END_WITHIN_S: Final = 60.0
"""How long after the driver's death the JVM may take to end its Python processes, before they are killed."""
PAUSE_S: Final = 0.05

log = logging.getLogger(__name__)
_started: dict[str, subprocess.Popen[bytes]] = {}
"""The servers of this driver, by folder: one."""


def start_fork_server(folder: str, programs: Sequence[str] = PROGRAMS) -> bool:
    """Start the server of this process, whose socket is in this folder, unless it was started. Returns whether it was.

    It forks for these modules. Without it everything works, more slowly: an error is only logged.
    """
    if folder in _started:
        return True
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    path = Path(folder, SOCKET)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, open(Path(folder, LOG), "wb") as output:
            listener.bind(str(path))
            listener.listen(socket.SOMAXCONN)
            _started[folder] = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno()), str(os.getpid()), *programs],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_server_environment(os.environ),
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
    except OSError as error:
        log.debug("no fork server for Spark's Python processes: %s", error)
        return False
    return True


def _server_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        ARROW_THREADS: "background_thread:false",
        "PYTHONHASHSEED": "0",  # as Spark sets it
        **environment,
        MATH_THREADS: "1",
        "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
    }


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What a client asks for."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    umask: int
    ignored: list[int]
    """Signals."""
    streams: list[int]
    """File descriptors: standard input, output and error."""


@dataclass(slots=True)
class Client:
    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    streams: list[int] = field(default_factory=list)
    pid: int | None = None
    """The process, once it has been started."""
    process: int = -1
    """Its file descriptor."""

    def close(self) -> None:
        self.connection.close()
        for fd in (*self.streams, self.process):
            if fd >= 0:
                os.close(fd)
        self.streams, self.process = [], -1


class Suitability:
    """Which orders a fork of this process fulfils exactly."""

    def __init__(self, environment: Mapping[str, str], programs: Sequence[str]) -> None:
        self._programs = programs
        self._variables = _compared(environment)
        self._folder = os.getcwd()
        self._path = _entries(environment.get("PYTHONPATH", ""))

    def refusal(self, request: StartRequest) -> str | None:
        """Why a fork does not do; None if it does."""
        if len(request.arguments) < 2 or request.arguments[0] != "-m" or request.arguments[1] not in self._programs:
            return f"not one of the modules that are known here: {request.arguments[:2]}"
        if request.folder != self._folder:
            return f"the working folder is {request.folder}, not {self._folder}"
        if _entries(request.environment.get("PYTHONPATH", "")) != self._path:
            return f"PYTHONPATH is {request.environment.get('PYTHONPATH')}"
        if request.environment.get(MATH_THREADS, "1") != "1":
            return f"{MATH_THREADS} is {request.environment[MATH_THREADS]}"
        variables = _compared(request.environment)
        differing = sorted(name for name, _ in variables.items() ^ self._variables.items())
        return f"variables differ: {', '.join(dict.fromkeys(differing))}" if differing else None


def _compared(environment: Mapping[str, str]) -> dict[str, str]:
    ours = OF_EACH_PROCESS | {MATH_THREADS, ARROW_THREADS}
    return {name: value for name, value in environment.items() if name not in ours}


def _entries(path: str) -> list[str]:
    """The entries of a PYTHONPATH as Python takes them: absolute, each once."""
    return list(dict.fromkeys(os.path.abspath(each) for each in path.split(os.pathsep))) if path else []


class Server:
    """Forks a process for each client, and stands between the two until one of them ends."""

    def __init__(self, listener: socket.socket, driver: int, suitability: Suitability) -> None:
        self._listener = listener
        self._driver = os.pidfd_open(driver)
        self._suitability = suitability
        self._poller = select.poll()
        self._doing: dict[int, Callable[[], StartRequest | None]] = {}
        self._clients: dict[int, Client] = {}
        self._reasons: set[str] = set()
        self._deadline: float | None = None
        self._watch(listener.fileno(), self._accept)
        self._watch(self._driver, self._driver_died)

    def serve(self) -> StartRequest | None:
        """Returns a request in a process that was forked for it, and None in the server when it has no more to do."""
        while self._deadline is None or (self._clients and time.monotonic() < self._deadline):
            for fd, _ in self._poller.poll(None if self._deadline is None else 1000):
                # One event may close the file descriptor of the next.
                if fd in self._doing and (request := self._doing[fd]()) is not None:
                    return request
        return None

    def _watch(self, fd: int, act: Callable[[], StartRequest | None]) -> None:
        self._doing[fd] = act
        self._poller.register(fd, select.POLLIN)

    def _forget(self, fd: int) -> None:
        if self._doing.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def _driver_died(self) -> None:
        self._forget(self._driver)
        self._deadline = time.monotonic() + END_WITHIN_S

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the client has gone, or this process has no file descriptors left until others end
            time.sleep(PAUSE_S)
            return
        client = Client(connection)
        self._clients[connection.fileno()] = client
        self._watch(connection.fileno(), lambda: self._hear(client))
        try:
            connection.send(READY)
        except OSError:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        self._clients.pop(client.connection.fileno(), None)
        self._forget(client.connection.fileno())
        self._forget(client.process)
        client.close()

    def _hear(self, client: Client) -> StartRequest | None:
        try:
            received, streams, _, _ = socket.recv_fds(client.connection, 65536, 3, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            received, streams = b"", []
        client.streams += streams
        if client.pid is not None:
            self._signal(client, received)
            return None
        if not received:
            self._drop(client)
            return None
        client.received += received
        if len(client.received) < 4 + int.from_bytes(client.received[:4], "big") < LONGEST_ORDER_BYTES:
            return None
        try:
            arguments, environment, folder, umask, ignored = marshal.loads(client.received[4:])
        except (EOFError, TypeError, ValueError):
            self._refuse(client, "a request that cannot be read")
            return None
        request = StartRequest(arguments, environment, folder, umask, ignored, client.streams)
        reason = self._suitability.refusal(request)
        if reason is not None:
            self._refuse(client, reason)
            return None
        return self._fork(client, request)

    def _signal(self, client: Client, numbers: bytes) -> None:
        """Send these signals to the client's process; none are left if the client was killed."""
        assert client.pid is not None
        for number in numbers or bytes((signal.SIGKILL,)):
            os.kill(client.pid, number)  # it is not waited for before `_ended`, so the id is its own
        if not numbers:
            self._forget(client.connection.fileno())

    def _refuse(self, client: Client, reason: str) -> None:
        if reason not in self._reasons and len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)
            sys.stderr.write(f"refused: {reason}\n")
            sys.stderr.flush()
        self._drop(client)

    def _fork(self, client: Client, request: StartRequest) -> StartRequest | None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._refuse(client, f"cannot fork: {error}")
            return None
        if pid == 0:
            die_with(server)
            self._close_in_child(request)
            return request
        client.pid, client.process, client.received = pid, os.pidfd_open(pid), bytearray()
        for fd in client.streams:
            os.close(fd)
        client.streams = []
        self._watch(client.process, lambda: self._ended(client))
        try:
            client.connection.send(STARTED)
        except OSError:
            log.debug("the client of process %s has gone", pid)  # its connection's end is the next event
        return None

    def _ended(self, client: Client) -> None:
        assert client.pid is not None
        ended, status = os.waitpid(client.pid, os.WNOHANG)
        if not ended:  # the event was for another process, whose file descriptor had this number
            return
        try:
            client.connection.send(status.to_bytes(4, "big"))
        except OSError:
            log.debug("nobody waits for process %s", client.pid)
        self._drop(client)

    def _close_in_child(self, request: StartRequest) -> None:
        """Close what is the server's. Objects must forget their file descriptors, whose numbers will be used again."""
        for client in self._clients.values():
            client.streams = [fd for fd in client.streams if fd not in request.streams]
            client.close()
        os.close(self._driver)
        self._listener.close()


class Reseeding:
    """Gives forked workers random numbers of their own.

    A new interpreter seeds NumPy when it imports it; here that was done before the fork. Python's `random` does this by
    itself. Spark's daemon forks the workers, so the forks of a daemon count too; those of users' functions do not.
    """

    active = True

    def after_fork(self) -> None:
        if self.active and "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        self.active = False


def become(request: StartRequest, reseeding: Reseeding) -> None:
    """Make this process look like an interpreter that was started with these arguments and this environment."""
    os.setpgid(0, 0)
    for number in FORWARDED:
        if number in request.ignored:
            signal.signal(number, signal.SIG_IGN)
        elif number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        else:
            signal.signal(number, signal.SIG_DFL)
    for stream, fd in enumerate(request.streams):
        os.dup2(fd, stream)
    for fd in request.streams:
        if fd > 2:
            os.close(fd)
    os.umask(request.umask)
    os.environ.clear()
    os.environ.update(request.environment)
    module = request.arguments[1]
    sys.orig_argv = [sys.executable, *request.arguments]
    sys.argv = ["-m", *request.arguments[2:]]
    _open_streams(unbuffered=bool(request.environment.get("PYTHONUNBUFFERED")))
    sys.modules["__main__"] = ModuleType("__main__")
    sys.modules["__main__"].__annotations__ = {}
    sys.modules.pop(module, None)  # it was imported; now it is run
    importlib.invalidate_caches()  # folders may have changed since then
    reseeding.active = module == DAEMON


def _open_streams(*, unbuffered: bool) -> None:
    """New `sys.stdin`, `sys.stdout` and `sys.stderr` on the file descriptors that are now theirs."""

    def opened(fd: int, like: io.TextIOWrapper) -> io.TextIOWrapper:
        raw: Any = io.FileIO(fd, "rb" if fd == 0 else "wb", closefd=False)
        raw.name = like.name
        stream = io.BufferedReader(raw) if fd == 0 else raw if unbuffered else io.BufferedWriter(raw)
        by_line = not unbuffered and (fd == 2 or raw.isatty())
        text = io.TextIOWrapper(stream, like.encoding, like.errors, "\n", by_line, write_through=unbuffered)
        text.mode = "r" if fd == 0 else "w"  # type: ignore[misc]
        return text

    sys.stdin = sys.__stdin__ = opened(0, sys.__stdin__)  # type: ignore[misc,arg-type]
    sys.stdout = sys.__stdout__ = opened(1, sys.__stdout__)  # type: ignore[misc,arg-type]
    sys.stderr = sys.__stderr__ = opened(2, sys.__stderr__)  # type: ignore[misc,arg-type]


def run(module: str) -> NoReturn:
    """Run this module as Python does by `-m`, then end without freeing all objects one by one, as Spark's workers do.

    That would take longer than all the rest, because it copies the memory that is shared with the server.
    """
    code = 0
    try:
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            sys.stderr.write(f"{end.code}\n")
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except (BrokenPipeError, ConnectionResetError):  # PySpark could not tell Spark of an error, because Spark has ended
        code = 1
    except BaseException as error:  # Python ends a program like this, whatever was raised
        sys.excepthook(type(error), error, error.__traceback__)
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it, or the module has closed it
            stream.flush()
    os._exit(code & 0xFF)


def import_all(names: Sequence[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # a process that needs it will say so
            sys.stderr.write(f"cannot import {name}: {error!r}\n")


def main() -> None:
    environment = dict(os.environ)
    listener, driver, programs = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]
    server = Server(listener, driver, Suitability(environment, programs))
    if os.getppid() != driver:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # as the JVM does, whose processes these stand for
    path = list(sys.path)
    import_all((*programs, *LIBRARIES))
    sys.path[:] = path
    if len(os.listdir("/proc/self/task")) > 1:
        raise SystemExit("the imports started threads: no process can be forked")
    gc.collect()
    gc.freeze()
    reseeding = Reseeding()
    os.register_at_fork(after_in_child=reseeding.after_fork)
    request = server.serve()
    if request is not None:
        become(request, reseeding)
        run(request.arguments[1])


if __name__ == "__main__":
    main()
