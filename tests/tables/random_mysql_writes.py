"""Writers that change tables of MySQL or MariaDB at random, in many transactions, some of which roll back."""

from __future__ import annotations

import datetime
import json
import random
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pymysql

from tests.tables.captured import random_text

TABLES: Final = (
    """CREATE TABLE items (
        id bigint PRIMARY KEY, name longtext, amount decimal(30, 10), made timestamp(6) NULL, local datetime(3),
        day date, moment time(6), flag bool, raw longblob, document json, ratio double, small float,
        big bigint unsigned,
        feeling enum('happy', 'it''s "ok"'), labels set('a', 'ü', 'c'), bits bit(13), fixed binary(6), year year,
        twice bigint AS (id * 2) VIRTUAL
    ) CHARACTER SET utf8mb4""",
    """CREATE TABLE pairs (
        letter varchar(20) CHARACTER SET latin1, number int unsigned, body text CHARACTER SET utf8mb4,
        PRIMARY KEY (letter, number)
    )""",
    """CREATE TABLE parted (id int PRIMARY KEY, body longtext CHARACTER SET utf8mb4)
       PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN (50), PARTITION high VALUES LESS THAN MAXVALUE)""",
    "CREATE TABLE other (id int PRIMARY KEY)",
)
ZONES: Final = ("+00:00", "+02:00", "-05:30")
_PASSING: Final = (1205, 1213, 1062, 1020)
"""Lock wait timeout, deadlock, duplicate key, record has changed."""

Connect = Callable[[], Any]


def make_tables(connect: Connect, rows: int, seed: int) -> None:
    chance = random.Random(seed)
    connection = connect()
    try:
        with connection.cursor() as cursor:
            for statement in TABLES:
                cursor.execute(statement)
            cursor.execute("BEGIN")
            for number in range(rows):
                insert_item(cursor, chance, number)
                cursor.execute("INSERT INTO pairs VALUES (%s, %s, %s)", (f"é{number % 7}", number, random_text(chance)))
                cursor.execute("INSERT INTO parted VALUES (%s, %s)", (number, random_text(chance)))
            cursor.execute("COMMIT")
    finally:
        connection.close()


def insert_item(cursor: Any, chance: random.Random, number: int) -> None:
    names = (
        "id, name, amount, made, local, day, moment, flag, raw, document, ratio, small, big, feeling, labels, bits, "
        "fixed, year"
    )
    marks = ", ".join(["%s"] * 18)
    cursor.execute(
        f"INSERT INTO items ({names}) VALUES ({marks}) ON DUPLICATE KEY UPDATE name = VALUES(name)",
        (number, *random_values(chance)),
    )


def random_values(chance: random.Random) -> list[Any]:
    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.15 else value

    moment = datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC) + datetime.timedelta(
        seconds=chance.randrange(2_000_000_000), microseconds=chance.randrange(1_000_000)
    )
    sign, hours = chance.choice(("", "-")), chance.randrange(838)
    return [
        random_text(chance),
        maybe(Decimal(chance.randrange(-(10**25), 10**25)).scaleb(-10)),
        maybe(moment.replace(tzinfo=None)),
        maybe(moment.replace(tzinfo=None)),
        maybe(chance.choice((moment.date(), "0000-00-00", "2020-00-00"))),
        maybe(f"{sign}{hours:02d}:{chance.randrange(60):02d}:{chance.randrange(60):02d}.{chance.randrange(10**6):06d}"),
        maybe(chance.random() < 0.5),
        maybe(chance.randbytes(chance.choice((0, 5, 4_000)))),
        maybe(json.dumps({"a": random_text(chance), "b": [1, None, 2.5]})),
        maybe(chance.choice((0.1, -1e300, 1 / 3, 5e-324))),
        maybe(chance.choice((0.1, 16777216.0, -3.4e38, 1 / 3))),
        maybe(chance.getrandbits(64)),
        maybe(chance.choice(("happy", 'it\'s "ok"'))),
        maybe(chance.choice(("", "a,ü", "c"))),
        maybe(chance.getrandbits(13)),
        maybe(chance.choice((b"", b"ab\0", b"\xff" * 6))),
        maybe(chance.choice((0, 1901, 2155))),
    ]


class Writer(threading.Thread):
    """Writes transactions until stopped, each of a few random changes."""

    def __init__(self, connect: Connect, seed: int, *, keys: int) -> None:
        super().__init__(name=f"writer-{seed}", daemon=True)
        self._connect = connect
        self._chance = random.Random(seed)
        self._keys = keys
        self._stopping = threading.Event()
        self.committed = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            connection = self._connect()
            try:
                with connection.cursor() as cursor:
                    cursor.execute("SET sql_mode = '', innodb_lock_wait_timeout = 2")
                    while not self._stopping.is_set():
                        self._transaction(cursor)
            finally:
                connection.close()
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self._stopping.set()
        self.join()
        if self.error is not None:
            raise self.error

    def _transaction(self, cursor: Any) -> None:
        chance = self._chance
        cursor.execute("SET time_zone = %s", (chance.choice(ZONES),))
        try:
            if chance.random() < 0.01:
                cursor.execute(f"TRUNCATE {chance.choice(('pairs', 'items', 'parted'))}")
                return
            if chance.random() < 0.05:
                self._undone(cursor)
                return
            cursor.execute("BEGIN")
            for number in range(chance.choice((1, 1, 2, 5, 40))):
                if number == 2 and chance.random() < 0.3:
                    cursor.execute("SAVEPOINT here")
                    self._change(cursor)
                    cursor.execute("ROLLBACK TO here")
                self._change(cursor)
            if chance.random() < 0.1:
                cursor.execute("ROLLBACK")
            else:
                cursor.execute("COMMIT")
                self.committed += 1
        except (pymysql.err.OperationalError, pymysql.err.IntegrityError) as error:
            cursor.execute("ROLLBACK")
            cursor.execute("DROP TEMPORARY TABLE IF EXISTS scratch")
            if error.args[0] not in _PASSING:
                raise

    def _undone(self, cursor: Any) -> None:
        """A transaction that is rolled back and is in the binlog all the same, because it made a temporary table."""
        key = self._chance.randrange(self._keys)
        cursor.execute("BEGIN")
        cursor.execute("CREATE TEMPORARY TABLE scratch (id int)")
        cursor.execute("UPDATE items SET name = 'undone' WHERE id = %s", (key,))
        cursor.execute("DELETE FROM parted WHERE id = %s", (key,))
        cursor.execute("REPLACE INTO pairs VALUES ('undone', %s, 'undone')", (key,))
        cursor.execute("ROLLBACK")
        cursor.execute("DROP TEMPORARY TABLE scratch")

    def _change(self, cursor: Any) -> None:
        chance, execute = self._chance, cursor.execute
        key = chance.randrange(self._keys)
        kind = chance.randrange(1000)
        if kind < 300:
            insert_item(cursor, chance, key)
        elif kind < 450:
            execute("UPDATE items SET flag = NOT flag, amount = %s WHERE id = %s", (chance.randrange(10**6), key))
        elif kind < 500:
            execute("UPDATE items SET name = %s WHERE id = %s", (random_text(chance), key))
        elif kind < 550:
            execute("UPDATE items SET id = %s WHERE id = %s", (chance.randrange(self._keys, 2 * self._keys), key))
        elif kind < 620:
            execute("DELETE FROM items WHERE id IN (%s, %s)", (key, key + self._keys))
        elif kind < 623:
            execute("UPDATE items SET flag = NOT flag")  # many rows in one event
        elif kind < 740:
            execute(
                "INSERT INTO pairs VALUES (%s, %s, %s) ON DUPLICATE KEY UPDATE body = VALUES(body)",
                (f"é{key % 7}", key, random_text(chance)),
            )
        elif kind < 780:
            execute("UPDATE IGNORE pairs SET letter = CONCAT(LEFT(letter, 15), 'x') WHERE number = %s", (key,))
        elif kind < 820:
            execute("DELETE FROM pairs WHERE number = %s", (key,))
        elif kind < 860:
            execute("REPLACE INTO parted VALUES (%s, %s)", (key, random_text(chance)))
        elif kind < 900:
            execute(
                "INSERT INTO parted VALUES (%s, %s) ON DUPLICATE KEY UPDATE body = VALUES(body)",
                (key, random_text(chance)),
            )
        elif kind < 950:
            execute("UPDATE IGNORE parted SET id = %s WHERE id = %s", (chance.randrange(2 * self._keys), key))
        else:
            execute("INSERT IGNORE INTO other VALUES (%s)", (key,))
