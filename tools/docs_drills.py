"""Run the drills of `penstock cluster`, and put their outputs into docs/how-to/kafka-cluster.md.

    python -m tools.docs_drills                 # all of them: takes about ten minutes
    python -m tools.docs_drills acks full-disk

All but those that need disks of their own run on one cluster. Run it while the machine has nothing else to do.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from penstock.cluster.drills import DRILLS

PAGE: Final = Path(__file__).parents[1] / "docs" / "how-to" / "kafka-cluster.md"
SEED: Final = "1"
PENSTOCK: Final = (sys.executable, "-m", "penstock.cli", "cluster")


def with_output(page: str, name: str, told: str) -> str:
    """The page with what this drill has told. The explanation, its last part, stands below the block and stays."""
    tables = told.strip().rpartition("\n\n")[0]
    command = f"$ penstock cluster drill {name} --seed {SEED}\n"
    block = re.compile(rf"(```text\n{re.escape(command)}).*?(\n```\n)", re.DOTALL)
    changed, count = block.subn(lambda found: f"{found[1]}{tables}{found[2]}", page)
    if count != 1:
        raise SystemExit(f"{PAGE.name} has {count} blocks that begin with {command.strip()!r}: it needs one")
    return changed


def main(names: list[str]) -> None:
    unknown = set(names) - DRILLS.keys()
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(DRILLS)}")
    with tempfile.TemporaryDirectory(prefix="penstock-drills-") as folder:
        shared = f"{folder}/cluster"
        subprocess.run([*PENSTOCK, "up", "--folder", shared], check=True)
        try:
            for name in names or DRILLS:
                where = shared if DRILLS[name].disk_mb is None else f"{folder}/none"
                command = [*PENSTOCK, "drill", name, "--seed", SEED, "--folder", where]
                told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                PAGE.write_text(with_output(PAGE.read_text("utf-8"), name, told), "utf-8")
        finally:
            subprocess.run([*PENSTOCK, "down", "--delete", "--folder", shared], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
