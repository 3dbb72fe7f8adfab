"""What tests of event sourcing share: accounts, and a process that deposits and can be killed."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

from penstock.errors import PenstockError, VersionConflictError
from penstock.tables.events import Aggregate, EventStore, applies


@dataclass
class Deposited:
    cents: int
    mark: str = ""


@dataclass
class Withdrawn:
    cents: int


class Account(Aggregate):
    cents: int = 0

    @applies(Deposited)
    def deposited(self, event: Deposited) -> None:
        self.cents += event.cents

    @applies(Withdrawn)
    def withdrawn(self, event: Withdrawn) -> None:
        if event.cents > self.cents:
            raise ValueError("an account cannot be overdrawn")
        self.cents -= event.cents


def deposit(url: str, seed: int) -> None:
    """Append to a few accounts until killed. Says `MARK VERSION` for each append that succeeded."""
    chance = random.Random(seed)
    with EventStore(url, "accounts", Account, snapshot_every=5, partitions=1) as store:
        number = 0
        while True:
            number += 1
            id, mark = f"a{chance.randrange(2)}", f"{seed}-{number}"
            version = store.load(id, fresh=chance.random() < 0.5).version
            try:
                events = [Deposited(1, mark)] * chance.randint(1, 3)
                version = store.append(id, events, expected_version=version)
            except VersionConflictError:
                print("conflict", flush=True)
            except PenstockError as error:
                print("failed", type(error).__name__, flush=True)
            else:
                print("stored", id, mark, version, flush=True)


if __name__ == "__main__":
    deposit(sys.argv[1], int(sys.argv[2]))
