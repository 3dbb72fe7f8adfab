"""A member of a group that sums amounts by key and serves its state, to be stopped and killed.

    python -m tests.consuming.state_member STREAM_URL CHECKPOINTS

It prints the URL of its state once it serves, and runs until SIGTERM.
"""

from __future__ import annotations

import sys
import threading

import penstock as ps

TOPIC = "amounts"
GROUP = "summing"
SESSION_S = 6.0


def run(url: str, checkpoints: str) -> None:
    app = ps.App(url, group=GROUP, checkpoints=checkpoints, serve="127.0.0.1:0")

    @app.handle(TOPIC, order="key", workers=2, session_timeout_s=SESSION_S, commit_interval_s=0.05)
    def add(amount: bytes, ctx: ps.Context) -> None:
        ctx.state["total"] = ctx.state.get("total", 0) + int(amount)

    def tell() -> None:
        while True:
            try:
                url = app.state_url
            except ps.errors.ConfigError:
                threading.Event().wait(0.01)
            else:
                sys.stdout.write(f"{url}\n")
                sys.stdout.flush()
                return

    threading.Thread(target=tell, daemon=True).start()
    app.run()


if __name__ == "__main__":
    run(*sys.argv[1:])
