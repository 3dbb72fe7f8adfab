"""Programs that get SIGKILL in the middle of their work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
LOOK_S: Final = 0.1
END_WITHIN_S: Final = 400.0


def run_until(killed_when: Callable[[], object] | None, arguments: Sequence[str], folder: Path) -> bool:
    """Run Python with these arguments, and kill it as soon as this is so. Gives whether it was killed.

    One that ends by itself must have ended well. What it prints is in a file of this folder.
    """
    output = folder / "output.txt"
    with open(output, "wb") as sink:
        program = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=sink, stderr=sink)
        try:
            while killed_when is not None and program.poll() is None:
                if killed_when():
                    program.kill()
                    program.wait()
                    return True
                try:
                    program.wait(LOOK_S)
                except subprocess.TimeoutExpired:
                    continue
            assert program.wait(END_WITHIN_S) == 0, output.read_text(errors="replace")[-4000:]
            return False
        finally:
            program.kill()
