"""Writers that change tables at random, in many transactions, some of which roll back."""

from __future__ import annotations

import datetime
import random
import threading
import uuid
from decimal import Decimal
from typing import Any, Final

import psycopg
from psycopg.types.json import Jsonb

from tests.tables.captured import random_text

TABLES: Final = """
CREATE TYPE mood AS ENUM ('happy', 'it''s "ok"');
CREATE TABLE items (
    id bigint PRIMARY KEY, name text, amount numeric(30, 10), made timestamptz, local timestamp, day date, moment time,
    flag boolean, raw bytea, labels text[], numbers int[], document jsonb, ident uuid, ratio double precision,
    feeling mood, span int4range, wait interval
);
CREATE TABLE pairs (letter text, number int, body text, PRIMARY KEY (letter, number));
ALTER TABLE pairs REPLICA IDENTITY FULL;
CREATE TABLE parted (id int PRIMARY KEY, body text) PARTITION BY RANGE (id);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (MINVALUE) TO (50);
CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (50) TO (MAXVALUE);
CREATE TABLE other (id int PRIMARY KEY);
"""
ZONES: Final = ("UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York")


def make_tables(url: str, rows: int, seed: int) -> None:
    chance = random.Random(seed)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
        with connection.transaction():
            for number in range(rows):
                insert_item(connection, chance, number)
                connection.execute(
                    "INSERT INTO pairs VALUES (%s, %s, %s)", (f"é{number % 7}", number, random_text(chance))
                )
                connection.execute("INSERT INTO parted VALUES (%s, %s)", (number, random_text(chance)))


def insert_item(connection: psycopg.Connection[Any], chance: random.Random, number: int) -> None:
    marks = ", ".join(["%s"] * 17)
    connection.execute(
        f"INSERT INTO items VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name".encode(),
        (number, *random_values(chance)),
    )


def random_values(chance: random.Random) -> list[Any]:
    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.15 else value

    moment = datetime.datetime.fromtimestamp(chance.randrange(-3_000_000_000, 4_000_000_000), datetime.UTC)
    moment += datetime.timedelta(microseconds=chance.randrange(1_000_000))
    return [
        random_text(chance),
        maybe(Decimal(chance.randrange(-(10**25), 10**25)).scaleb(-10)),
        maybe(moment),
        maybe(moment.replace(tzinfo=None)),
        maybe(moment.date()),
        maybe(moment.time()),
        maybe(chance.random() < 0.5),
        maybe(chance.randbytes(chance.choice((0, 5, 4_000)))),
        maybe([random_text(chance) for _ in range(chance.randrange(4))]),
        maybe([chance.choice((None, 1, -(2**31)))]),
        maybe(Jsonb({"a": random_text(chance), "b": [1, None, 2.5]})),
        maybe(uuid.UUID(int=chance.getrandbits(128))),
        maybe(chance.choice((0.1, -1e300, 1 / 3, 5e-324))),
        maybe(chance.choice(("happy", 'it\'s "ok"'))),
        maybe(chance.choice(("empty", "[1,10)", "(,5)"))),
        maybe(chance.choice(("1 day 02:03:04.5", "-1 mon", "0"))),
    ]


class Writer(threading.Thread):
    """Writes transactions until stopped, each of a few random changes."""

    def __init__(self, url: str, seed: int, *, keys: int, truncates: bool = True) -> None:
        super().__init__(name=f"writer-{seed}", daemon=True)
        self._url = url
        self._chance = random.Random(seed)
        self._keys = keys
        self._truncates = truncates
        self._stopping = threading.Event()
        self.committed = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                while not self._stopping.is_set():
                    self._transaction(connection)
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self._stopping.set()
        self.join()
        if self.error is not None:
            raise self.error

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        chance = self._chance
        connection.execute("SELECT set_config('timezone', %s, false)", (chance.choice(ZONES),))
        try:
            with connection.transaction():
                for _ in range(chance.choice((1, 1, 2, 5, 40))):
                    self._change(connection)
                if chance.random() < 0.1:
                    raise psycopg.Rollback
            self.committed += 1
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation, psycopg.errors.SerializationFailure):
            pass

    def _change(self, connection: psycopg.Connection[Any]) -> None:
        chance, execute = self._chance, connection.execute
        key = chance.randrange(self._keys)
        kind = chance.randrange(1000)
        if kind < 300:
            insert_item(connection, chance, key)
        elif kind < 450:
            execute("UPDATE items SET flag = NOT flag, amount = %s WHERE id = %s", (chance.randrange(10**6), key))
        elif kind < 500:
            execute("UPDATE items SET name = %s WHERE id = %s", (random_text(chance), key))
        elif kind < 550:
            execute("UPDATE items SET id = %s WHERE id = %s", (chance.randrange(self._keys, 2 * self._keys), key))
        elif kind < 620:
            execute("DELETE FROM items WHERE id IN (%s, %s)", (key, key + self._keys))
        elif kind < 740:
            execute(
                "INSERT INTO pairs VALUES (%s, %s, %s) ON CONFLICT (letter, number) DO UPDATE SET body = EXCLUDED.body",
                (f"é{key % 7}", key, random_text(chance)),
            )
        elif kind < 780:
            execute("UPDATE pairs SET letter = letter || 'x' WHERE number = %s", (key,))
        elif kind < 820:
            execute("DELETE FROM pairs WHERE number = %s", (key,))
        elif kind < 900:
            execute(
                "INSERT INTO parted VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET body = EXCLUDED.body",
                (key, random_text(chance)),
            )
        elif kind < 930:
            execute("UPDATE parted SET id = %s WHERE id = %s", (chance.randrange(2 * self._keys), key))
        elif kind < 990:
            execute("INSERT INTO other VALUES (%s) ON CONFLICT DO NOTHING", (key,))
        elif kind < 993 and self._truncates:
            execute("TRUNCATE pairs")
        elif kind < 995 and self._truncates:
            execute("TRUNCATE items, parted")
