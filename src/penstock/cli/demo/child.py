"""What every process of the demo begins with: `python -m penstock.cli.demo.child ROLE ARGUMENTS`.

The demo owns its processes. Each holds the reading end of a pipe to it: the word `finish` asks for a good end, and the
pipe's own end means that the demo is gone, however it went, so the process goes with it, and all that it has started.
What a process has to tell goes to its standard output, a JSON object a line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

import msgspec

FINISH: Final = b"finish\n"
ROLES: Final = ("command", "generator", "fraud", "use")


class Owner:
    """The demo, as one of its processes sees it."""

    def __init__(self) -> None:
        self.wants_end = threading.Event()
        """Set when the process shall bring its work to an end."""
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="owner", daemon=True).start()

    def tell(self, kind: str, **facts: object) -> None:
        line = msgspec.json.encode({"kind": kind, **facts}) + b"\n"
        with self._lock:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def _listen(self) -> None:
        # Read past Python's own buffer, whose lock a thread that waits would hold when the process ends.
        while said := os.read(sys.stdin.fileno(), len(FINISH)):
            if said == FINISH:
                self.wants_end.set()
        die_with_all()


def die_with_all() -> None:
    """End this process and those it has started, at once: they share its group, of which it is the leader."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> int:
    role, *rest = arguments
    if role not in ROLES:
        sys.stderr.write(f"{role!r} is no process of the demo: {', '.join(ROLES)}\n")
        return 2
    owner = Owner()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the demo's to hear
    if role == "command":
        from penstock.cli.main import app

        app(rest)
    elif role == "generator":
        from penstock.cli.demo.generator import GeneratorSettings, generate

        generate(msgspec.json.decode(rest[0], type=GeneratorSettings), owner)
    elif role == "fraud":
        from penstock.cli.demo.fraud import consume

        consume(*rest, owner=owner)
    else:
        from penstock.cli.demo.use import add_up

        add_up(*rest, owner=owner)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
