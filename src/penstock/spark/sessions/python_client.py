"""The program that Spark starts as its Python: it asks the fork server for the process, or becomes Python itself.

Spark starts it as `python -I -S python_client.py SOCKET SPARK_HOME`, followed by Python's own arguments. It imports
only modules that are compiled into the interpreter, because its start is the cost of every Python process of Spark.

It takes Spark's archives out of PYTHONPATH, where Python would compile every module of PySpark again in each process,
and sends its arguments, environment, working folder and standard streams to the server (`fork_server`, which describes
the protocol). If the server starts the process, this one stands for it: it forwards signals, and ends as that one ends.
If there is no server, or it refuses, this process becomes the interpreter, by `exec`.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import sys

READY = b"R"
STARTED = b"S"
ANSWER_WITHIN_S = 20.0
"""How long the server may take for its imports before this program does without it."""
FORWARDED = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM, _signal.SIGUSR1, _signal.SIGUSR2)
SERVER_DIED = 1
STANDARD_STREAMS = (0, 1, 2)


def without_archives(path: str, home: str) -> str:
    """This PYTHONPATH without the archives of the Spark in `home`, which is installed as a package too."""

    def is_archive(entry: str) -> bool:
        return (entry.startswith(f"{home}/python/lib/") and entry.endswith(".zip")) or (
            entry.startswith(f"{home}/jars/") and entry.endswith(".jar")
        )

    return ":".join(each for each in path.split(":") if each and not is_archive(each))


def ask(path: str, arguments: list[str], environment: dict[str, str]) -> "_socket.socket | None":
    """The connection to the server if it has started the process; None if it has not and will not."""
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        server.settimeout(ANSWER_WITHIN_S)
        server.connect(path)
        if server.recv(1) != READY:
            return None
        umask = os.umask(0)
        os.umask(umask)
        ignored = [int(number) for number in FORWARDED if _signal.getsignal(number) == _signal.SIG_IGN]
        order = marshal.dumps((arguments, environment, os.getcwd(), umask, ignored))
        message = len(order).to_bytes(4, "big") + order
        streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in STANDARD_STREAMS)
        server.settimeout(None)
        sent = server.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
        server.sendall(message[sent:])
        return server if server.recv(1) == STARTED else None
    except OSError:
        return None


def stand_for_process(server: "_socket.socket", mask: "set[int]") -> int:
    """Forward signals, except those of `mask`, until the process has ended. Returns its status as `os.wait` does."""

    def forward(number: int, frame: object) -> None:
        try:
            server.send(bytes((number,)))
        except OSError:
            return  # the process has just ended, or the server has: `recv` below tells

    for number in FORWARDED:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, forward)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    nothing = os.open(os.devnull, os.O_RDWR)  # the streams are the process's now: it may close them
    for stream in STANDARD_STREAMS:
        os.dup2(nothing, stream)
    status = b""
    while len(status) < 4:
        received = server.recv(4)
        if not received:
            return SERVER_DIED << 8
        status += received
    return int.from_bytes(status, "big")


def end_with(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def main() -> None:
    path, home, *arguments = sys.argv[1:]
    environment = dict(os.environ)
    environment["PYTHONPATH"] = without_archives(environment.get("PYTHONPATH", ""), home)
    # The process may be at work before this one can forward signals to it: until then, they wait.
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, FORWARDED)
    server = ask(path, arguments, environment)
    if server is None:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        os.execve(sys.executable, [sys.executable, *arguments], environment)
    end_with(stand_for_process(server, mask))


if __name__ == "__main__":
    main()
