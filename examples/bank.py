"""A bank account by event sourcing: appends that conflict, snapshots, and a table of balances that is built again.

    python examples/bank.py [URL]

Four clerks work at the same time. Each loads an account, decides, and appends with the version that it has seen; who
comes too late decides again. A projection keeps the balances in SQLite, exactly-once; then its second version is built
beside it, and the view is switched.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
from dataclasses import dataclass
from functools import partial

import penstock as ps
from penstock.typing import StoredEvent

BALANCES = "sqlite:./bank.db"


@dataclass
class Deposited:
    cents: int


@dataclass
class Withdrawn:
    cents: int


class Account(ps.Aggregate):
    cents: int = 0

    @ps.applies(Deposited)
    def deposited(self, event: Deposited) -> None:
        self.cents += event.cents

    @ps.applies(Withdrawn)
    def withdrawn(self, event: Withdrawn) -> None:
        if event.cents > self.cents:
            raise ValueError("an account cannot be overdrawn")
        self.cents -= event.cents


def decide(cents: int, account: Account) -> list[Deposited | Withdrawn]:
    return [Deposited(2 * cents), Withdrawn(min(cents, account.cents))] if account.cents else [Deposited(cents)]


def work(accounts: ps.EventStore[Account], seed: int) -> None:
    """Deposit, and withdraw a part of what is there, on accounts that others change at the same time."""
    chance = random.Random(seed)
    for _ in range(5):
        accounts.change(f"account-{chance.randrange(3)}", partial(decide, chance.randrange(1, 100)))


def balances(accounts: ps.EventStore[Account], version: int) -> ps.Projection:
    columns = "id TEXT PRIMARY KEY, cents BIGINT NOT NULL" + (", events BIGINT NOT NULL" if version == 2 else "")
    projection = ps.Projection(accounts, "balances", BALANCES, tables={"balances": columns}, version=version)
    table = projection.table("balances")
    more = ", events = events + 1" if version == 2 else ""
    row = "(?, ?, 1)" if version == 2 else "(?, ?)"
    statement = f"INSERT INTO {table} VALUES {row} ON CONFLICT (id) DO UPDATE SET cents = cents + excluded.cents{more}"

    @projection.on(Deposited)
    def deposited(database: sqlite3.Connection, stored: StoredEvent) -> None:
        database.execute(statement, (stored.id, stored.event.cents))

    @projection.on(Withdrawn)
    def withdrawn(database: sqlite3.Connection, stored: StoredEvent) -> None:
        database.execute(statement, (stored.id, -stored.event.cents))

    return projection


def main(url: str) -> None:
    with ps.EventStore(url, "accounts", Account, snapshot_every=20) as accounts:
        clerks = [threading.Thread(target=work, args=(accounts, seed)) for seed in range(4)]
        for clerk in clerks:
            clerk.start()
        for clerk in clerks:
            clerk.join()

        try:
            accounts.append("account-0", [Deposited(1)], expected_version=0)
        except ps.PenstockError as error:
            print("refused:", error)

        for version in (1, 2):
            balances(accounts, version).build()
        database = sqlite3.connect("bank.db")
        rows = database.execute("SELECT id, cents, events FROM balances ORDER BY id").fetchall()
        database.close()
        for id, cents, events in rows:
            replayed = accounts.replay(id)
            assert (cents, events) == (replayed.state.cents, replayed.version)
            print(f"{id}: {cents / 100:.2f} after {events} events")
        print("every balance equals the replay of its events")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "log:./data")
