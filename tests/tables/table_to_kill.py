"""A program that keeps a table in a file until it is killed: URL STORAGE, and "memory" for rows in memory."""

from __future__ import annotations

import sys
import threading

import penstock as ps


def main(url: str, storage: str, where: str) -> None:
    with ps.Table(url, "users", storage=storage, in_memory=where == "memory") as users:
        users.wait_until_caught_up(60)
        print("ready", flush=True)
        threading.Event().wait(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
