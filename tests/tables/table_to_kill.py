"""A program that keeps a table on disk until it is killed: URL STORAGE."""

from __future__ import annotations

import sys
import threading

import penstock as ps


def main(url: str, storage: str) -> None:
    with ps.Table(url, "users", storage=storage) as users:
        users.wait_until_caught_up(60)
        print("ready", flush=True)
        threading.Event().wait(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
