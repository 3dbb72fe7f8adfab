"""Enrich clicks with the profiles of their users, which live in PostgreSQL, without asking PostgreSQL for any click.

    python examples/enrich_clicks.py [POSTGRESQL_URL]

The profiles are captured into a topic, and a Table keeps that topic in this process: handlers look users up in memory.
A change in the database is visible to the next clicks, without a restart. Without a URL, the program starts a server
of its own in a temporary folder (PostgreSQL must be installed), and removes it at the end.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

import penstock as ps
from penstock.tables import Capture

CLICKS = 200


@dataclass
class User:
    id: int
    name: str
    city: str


@dataclass
class Click:
    user: int
    page: str


@dataclass
class EnrichedClick:
    page: str
    name: str
    city: str


def main(url: str, log: str) -> None:
    run = f"shop_{random.SystemRandom().randrange(1 << 32)}"  # each run has topics of its own
    clicks = ps.Topic(f"{run}.clicks", Click, key=lambda click: click.user, partitions=1)
    enriched = ps.Topic(f"{run}.enriched", EnrichedClick, partitions=1)
    with psycopg.connect(url, autocommit=True) as database, ps.connect(log) as stream:
        database.execute("CREATE TABLE users (id int PRIMARY KEY, name text, city text)")
        database.execute("INSERT INTO users VALUES (1, 'Ada', 'London'), (2, 'Grace', 'New York'), (3, 'Tove', 'Oslo')")
        # What `penstock cdc` does, in a thread of this program.
        capture = Capture(url, stream, tables=["public.users"], name=run, prefix=run, format="flat")
        capturing = threading.Thread(target=capture.run)
        capturing.start()
        try:
            wait_until(lambda: f"{run}.public.users" in stream.topics())
            with ps.Table(stream, ps.Topic(f"{run}.public.users", User), format="flat", indexes=["city"]) as users:
                app = new_app(log, run, clicks, enriched, users)
                wait_until(lambda: len(users) == 3)
                click(stream, clicks)
                app().run(end="latest")

                database.execute("UPDATE users SET city = 'Bergen' WHERE name = 'Tove'")
                wait_until(lambda: "Bergen" in users[3].city)
                print("Tove has moved; users in Bergen:", list(users.by("city", "Bergen").values()))
                click(stream, clicks)
                app().run(end="latest")
        finally:
            capture.stop()
            capturing.join()
        rows = (enriched.decode(record.value) for record in stream.read(enriched.name))
        found = Counter(row.city for row in rows if row is not None)
        print(", ".join(f"{count} clicks from {city}" for city, count in sorted(found.items())))
        print(f"enriched {found.total()} clicks of {2 * CLICKS}")


def new_app(
    log: str, run: str, clicks: ps.Topic[Click], enriched: ps.Topic[EnrichedClick], users: ps.Table[User]
) -> Callable[[], ps.App]:
    def new() -> ps.App:
        app = ps.App(log, group=run)

        @app.handle(clicks, to=enriched)
        def enrich(click: Click) -> EnrichedClick:
            user = users[click.user]  # a lookup in a dict
            return EnrichedClick(click.page, user.name, user.city)

        return app

    return new


def click(stream: ps.Connection, clicks: ps.Topic[Click]) -> None:
    for number in range(CLICKS):
        stream.send(clicks, Click(1 + number % 3, f"/page/{number}"))
    stream.flush(timeout_s=60)


def wait_until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {timeout_s} s")
        time.sleep(0.02)


@contextlib.contextmanager
def own_postgres() -> Iterator[str]:
    """A PostgreSQL on a free port of this machine. It refuses to run as root: then it runs as another user."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    where = shutil.which("initdb") or (str(programs[-1] / "initdb") if programs else None)
    if where is None:
        sys.exit("PostgreSQL is not installed: install it, or pass the URL of a server with wal_level=logical")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as folder:
        as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = next(each for each in pwd.getpwall() if each.pw_name in ("postgres", "nobody"))
            as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(folder, user.pw_uid, user.pw_gid)
        data = f"{folder}/data"
        options = ["--no-sync", "--auth=trust", "--username=penstock", "--encoding=UTF8", "--locale=C"]
        subprocess.run([where, "-D", data, *options], check=True, stdout=subprocess.DEVNULL, cwd="/", **as_user)
        settings = [f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", "wal_level=logical"]
        command = [str(Path(where).with_name("postgres")), "-D", data, *(f"-c{each}" for each in settings)]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd="/", **as_user)
        try:
            url = f"postgresql://penstock@127.0.0.1:{port}/postgres"
            wait_until(lambda: answers(url))
            yield url
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], "log:./data")
    else:
        with own_postgres() as address:
            main(address, "log:./data")
