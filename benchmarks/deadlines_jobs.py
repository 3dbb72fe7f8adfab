"""The processes of the fraud case whose verdicts `deadlines` measures.

    python -m benchmarks.deadlines_jobs analysers|presenter URL ACKS

Runs until its standard input ends. The topics, analysers and the judge are those of the example.
"""

from __future__ import annotations

import sys
from typing import Literal

from examples.pipelines.fraud_in_time import analysers, presenter


def main(job: str, url: str, acks: str) -> None:
    wanted: Literal[1, "all"] = 1 if acks == "1" else "all"
    if job == "analysers":
        with analysers(url) as pipeline:
            pipeline.start()
            print("started", flush=True)
            sys.stdin.read()
    else:
        with presenter(url, acks=wanted) as app:
            thread = app.start()
            print("started", flush=True)
            sys.stdin.read()
            app.stop()
            thread.join(30)


if __name__ == "__main__":
    main(*sys.argv[1:])
