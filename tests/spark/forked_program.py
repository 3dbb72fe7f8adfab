"""Run by the fork server and by a new interpreter: tells what it is like, or does what its first argument says."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from types import FrameType
from typing import Any

import numpy


def stream(file: Any) -> list[Any]:
    return [file.name, file.mode, file.encoding, file.errors, file.line_buffering, file.write_through, file.fileno()]


def describe() -> dict[str, Any]:
    main = sys.modules["__main__"]
    return {
        "environment": dict(os.environ),
        "arguments": [sys.argv, sys.orig_argv],
        "path": sys.path,
        "folder": os.getcwd(),
        "umask": os.umask(0o777),
        "signals": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "streams": [stream(each) for each in (sys.stdin, sys.stdout, sys.stderr)],
        "interpreter": [sys.executable, str(sys.flags), sys.warnoptions, hash("a text"), sys.version],
        "main": [__name__, main.__spec__ and main.__spec__.name, main.__file__, sorted(vars(main))],
        "as the module": "tests.spark.forked_program" in sys.modules,
        "files": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],  # the last one is this folder
    }


def on_terminate(number: int, frame: FrameType | None) -> None:
    tell("got", number)
    sys.exit(7)


def tell(*words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "describe":
        tell(describe())
    elif what == "origin":
        tell(os.getpid(), os.getppid())
    elif what == "numbers":
        tell(random.random(), numpy.random.random())
    elif what == "exit":
        sys.exit(json.loads(rest[0]))
    elif what == "raise":
        raise ValueError("of this program")
    elif what == "hang up":
        raise BrokenPipeError
    elif what == "kill":
        os.kill(os.getpid(), int(rest[0]))
    elif what == "echo":
        tell(os.getpid(), os.getppid())
        sys.stdout.write(sys.stdin.read())
    elif what == "close":
        os.close(1)
        sys.stdin.read()
        os._exit(0)
    elif what == "terminate":
        signal.signal(signal.SIGTERM, on_terminate)
        tell("ready")
        signal.pause()


if __name__ == "__main__":
    main()
