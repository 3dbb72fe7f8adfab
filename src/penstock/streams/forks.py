"""Forks: how a connection or a producer notices that it is used in a forked process."""

from __future__ import annotations

import os
from typing import Final


class Forks:
    """Counts the forks that led to this process. `send` reads this, because asking for the process id is slower."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1


FORKS: Final = Forks()
os.register_at_fork(after_in_child=FORKS.add)
