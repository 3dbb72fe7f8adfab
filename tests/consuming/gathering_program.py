"""An app with a gathering, in a process that a test kills.

python tests/consuming/gathering_program.py URL MEMBER
"""

from __future__ import annotations

import sys

import penstock as ps
from penstock.consuming.deadlines.call import Result


def judge(request: bytes, result: Result) -> str:
    return " ".join(
        [request.decode(), result.label, *(f"{name}={result.answers[name].decode()}" for name in result.answers)]
    )


def main(url: str, member: str) -> None:
    app = ps.App(url, group="fraud")
    app.gather(
        "requests",
        {"a": "answers-a", "b": "answers-b"},
        to="verdicts",
        within_ms=20,
        request_id=lambda request: request,
        answer_to=lambda answer: answer,
        late="late",
        member=member,
    )(judge)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
