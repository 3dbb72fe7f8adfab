"""Keep a full-text search index in sync with a table of PostgreSQL.

    python examples/search_index.py [POSTGRESQL_URL]

The articles are captured into a topic, and an Applier writes them to a SQLite file, where triggers keep an FTS5 index.
Rows, index and the applier's pointer change in one transaction, so each change is indexed exactly once, whatever is
killed. Without a URL, the program starts a server of its own in a temporary folder (PostgreSQL must be installed), and
removes it at the end.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
from enrich_clicks import own_postgres, wait_until  # type: ignore[import-not-found]  # the example beside this one

from penstock.tables import Capture
from penstock.tables.apply import Applier

ARTICLES = [
    ("Kafka on one disk", "How a log of records survives a crash"),
    ("Sourdough", "Flour, water, salt and a week of patience"),
    ("The night train", "From Oslo to Bergen over the mountains"),
]
INDEX = """
CREATE TABLE articles (id INTEGER PRIMARY KEY, title TEXT, body TEXT);
CREATE VIRTUAL TABLE words USING fts5(title, body, content=articles, content_rowid=id, tokenize='porter unicode61');
CREATE TRIGGER added AFTER INSERT ON articles BEGIN
  INSERT INTO words (rowid, title, body) VALUES (new.id, new.title, new.body);
END;
CREATE TRIGGER removed AFTER DELETE ON articles BEGIN
  INSERT INTO words (words, rowid, title, body) VALUES ('delete', old.id, old.title, old.body);
END;
CREATE TRIGGER changed AFTER UPDATE ON articles BEGIN
  INSERT INTO words (words, rowid, title, body) VALUES ('delete', old.id, old.title, old.body);
  INSERT INTO words (rowid, title, body) VALUES (new.id, new.title, new.body);
END;
"""


def main(url: str, log: str, file: Path) -> None:
    run = f"library_{random.SystemRandom().randrange(1 << 32)}"  # each run has topics of its own
    with psycopg.connect(url, autocommit=True) as database, contextlib.closing(sqlite3.connect(file)) as index:
        index.executescript(INDEX)
        database.execute("CREATE TABLE articles (id int PRIMARY KEY, title text, body text)")
        for number, article in enumerate(ARTICLES):
            database.execute("INSERT INTO articles VALUES (%s, %s, %s)", (number, *article))

        def shows(words: str, *titles: str) -> None:
            """Wait until a search finds exactly these, best first."""
            wait_until(lambda: search(index, words) == list(titles))
            print(f"{words!r} finds {', '.join(titles) or 'nothing'}")

        with captured(url, log, run):
            with applied(log, run, file):
                shows("surviving crashes", "Kafka on one disk")  # the stems of words are compared
                shows("mountain", "The night train")

                database.execute("INSERT INTO articles VALUES (3, 'Fjords', 'A mountain that drowned')")
                shows("mountain", "Fjords", "The night train")

                database.execute("UPDATE articles SET body = 'From Oslo to Gdansk over the sea' WHERE id = 2")
                shows("mountain", "Fjords")
                shows("sea", "The night train")

                database.execute("DELETE FROM articles WHERE id = 3")
                shows("mountain")

            # Nobody updates the index now. What has changed meanwhile is found when the applier is back.
            database.execute("UPDATE articles SET title = 'Rye bread' WHERE title = 'Sourdough'")
            with applied(log, run, file):
                shows("bread", "Rye bread")
                shows("sourdough")
        index.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")  # fails if index and rows differ
        rows = "SELECT id, title, body FROM articles ORDER BY id"
        there, here = database.execute(rows).fetchall(), index.execute(rows).fetchall()
        print(f"the index has {sum(row in there for row in here)} articles of {len(there)}")


def search(index: sqlite3.Connection, words: str) -> list[str]:
    found = index.execute("SELECT title FROM words WHERE words MATCH ? ORDER BY rank", (words,))
    return [title for (title,) in found]


@contextlib.contextmanager
def captured(url: str, log: str, run: str) -> Iterator[None]:
    """What `penstock cdc` does, in a thread of this program."""
    with Capture(url, log, tables=["public.articles"], name=run, prefix=run) as capture:
        capturing = threading.Thread(target=capture.run)
        capturing.start()
        try:
            yield
        finally:
            capture.stop()
            capturing.join()


@contextlib.contextmanager
def applied(log: str, run: str, file: Path) -> Iterator[None]:
    """What `penstock cdc apply` does, in a thread of this program."""
    with Applier(log, f"{run}.public.articles", f"sqlite:{file}", table="articles") as applier:
        applying = threading.Thread(target=applier.run)
        applying.start()
        try:
            yield
        finally:
            applier.stop()
            applying.join()


if __name__ == "__main__":
    with contextlib.ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="penstock-search-"))
        address = sys.argv[1] if len(sys.argv) > 1 else closing.enter_context(own_postgres())
        main(address, "log:./data", Path(folder, "index.db"))
