"""The main program of every process of the demo: `python -m penstock.demo.child ROLE ARGUMENTS`."""

from __future__ import annotations

import signal
import sys
from typing import Final

import msgspec

from penstock.cli.main import app
from penstock.demo.fraud import consume
from penstock.demo.generator import GeneratorSettings, generate
from penstock.demo.processes import Owner

ROLES: Final = ("command", "generator", "fraud", "use")


def main(arguments: list[str]) -> int:
    role, *rest = arguments
    if role not in ROLES:
        sys.stderr.write(f"{role!r} is not a process of the demo: {', '.join(ROLES)}\n")
        return 2
    owner = Owner()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo handles Ctrl-C
    if role == "command":
        app(rest)
    elif role == "generator":
        generate(msgspec.json.decode(rest[0], type=GeneratorSettings), owner)
    elif role == "fraud":
        consume(*rest, owner=owner)
    else:
        from penstock.demo.use import add_up

        add_up(*rest, owner=owner)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
