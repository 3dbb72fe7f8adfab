"""An app with a gathering, in a process that a test kills.

python tests/consuming/gathering_program.py URL MEMBER SESSION_TIMEOUT_S
"""

from __future__ import annotations

import sys

import penstock as ps
from penstock.typing import Result


def main(url: str, member: str, session_timeout_s: str) -> None:
    app = ps.App(url, group="fraud")

    def judge(request: bytes, result: Result) -> str:
        return f"{member} {request.decode()} {result.label}"

    app.gather(
        "requests",
        {"a": "answers-a", "b": "answers-b"},
        to="verdicts",
        within_ms=20,
        request_id=lambda request: request,
        answer_to=lambda answer: answer,
        late="late",
        member=member,
        session_timeout_s=float(session_timeout_s),
    )(judge)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
