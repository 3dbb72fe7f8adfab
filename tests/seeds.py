"""Where randomised tests get their seed: a new one for every run, or the one that a failed run printed."""

from __future__ import annotations

import os
import random
from typing import Final

VARIABLE: Final = "PENSTOCK_SEED"


def seed_of() -> int:
    """The seed of this test, printed so that pytest shows it when the test fails: run again with PENSTOCK_SEED=it."""
    given = os.environ.get(VARIABLE)
    seed = int(given) if given else random.SystemRandom().randrange(1 << 32)
    print(f"{VARIABLE}={seed}")
    return seed
