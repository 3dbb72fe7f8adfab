"""What is known of requests in one partition: their answers so far, their deadlines, and which have their verdict.

Nothing here reads, sends or waits: the time is passed in, and what is to be sent is returned.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.consuming.deadlines.call import Result, Why
from penstock.model import Headers, Record

REQUEST: Final = "penstock-request"
"""The header of verdicts and late answers with the id of their request."""
RESULT: Final = "penstock-result"
"""The header of verdicts, and of late answers: `complete` or `partial`; NO_REQUEST if there is no verdict."""
MISSING: Final = "penstock-missing"
"""The header of verdicts with the names of the answers that were missing, separated by commas."""
TOOK_MS: Final = "penstock-took-ms"
"""The header of verdicts with the time since the request was sent."""
OVERDUE: Final = "penstock-overdue"
"""The header of verdicts whose time was up before their request could be read."""
ANSWER: Final = "penstock-answer"
"""The header of late answers with their name."""
LATE_MS: Final = "penstock-late-ms"
"""The header of late answers with the time since their verdict, or since their own arrival if there is none."""
NO_REQUEST: Final = "no request"


@dataclass(slots=True)
class Request:
    """A request without a verdict."""

    id: str
    record: Record
    value: Any
    arrived_ms: int
    """When it was sent, or read if its timestamp is later."""
    deadline_s: float
    overdue: bool
    """Time was up before it was read."""
    answers: dict[str, Answer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request."""

    request: str
    name: str
    value: Any
    record: Record
    came_s: float


@dataclass(slots=True)
class Decided:
    """A request that has its verdict."""

    at_s: float
    label: str
    missing: set[str]
    """Whose answers are still to come."""


@dataclass(frozen=True, slots=True)
class LateAnswer:
    """An answer that is no part of a verdict."""

    answer: Answer
    label: str
    late_ms: int

    def headers(self) -> Headers:
        return (
            (REQUEST, self.answer.request.encode()),
            (ANSWER, self.answer.name.encode()),
            (RESULT, self.label.encode()),
            (LATE_MS, str(self.late_ms).encode()),
        )


class Gathering:
    """Requests of one partition, and the answers to them.

    Of the requests with one id, the first counts, and so does the first answer of each name to it. Answers that come
    before their request, and ids of requests that have their verdict, are kept for `keep_s`, at most `most` of each.
    """

    def __init__(self, expected: Sequence[str], keep_s: float, most: int) -> None:
        self.expected = tuple(expected)
        self._keep_s = keep_s
        self._most = most
        self.open: dict[str, Request] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._early: collections.OrderedDict[tuple[str, str], Answer] = collections.OrderedDict()
        self._decided: collections.OrderedDict[str, Decided] = collections.OrderedDict()
        self._unasked: collections.OrderedDict[tuple[str, str], float] = collections.OrderedDict()
        """Answers without a request that were given up, and when: they may be repeated."""
        self.repeated = 0
        """Requests and answers that came again."""

    def add_request(self, request: Request) -> bool:
        """Add a request and the answers that came before it. False if it is a repeat of an earlier one."""
        if request.id in self.open or request.id in self._decided:
            self.repeated += 1
            return False
        for name in self.expected:
            early = self._early.pop((request.id, name), None)
            if early is not None:
                request.answers[name] = early
        self.open[request.id] = request
        heapq.heappush(self._deadlines, (request.deadline_s, request.id))
        return True

    def add_answer(self, answer: Answer) -> LateAnswer | None:
        """Add an answer to its request, or keep it until that comes. Returns it if it is late."""
        request = self.open.get(answer.request)
        if request is not None:
            if request.answers.setdefault(answer.name, answer) is not answer:
                self.repeated += 1
            return None
        key = (answer.request, answer.name)
        decided = self._decided.get(answer.request)
        if decided is not None and answer.name in decided.missing:
            decided.missing.discard(answer.name)
            return LateAnswer(answer, decided.label, _milliseconds(answer.came_s - decided.at_s))
        if decided is not None or key in self._early or key in self._unasked:
            self.repeated += 1
        else:
            self._early[key] = answer
        return None

    def is_ready(self, request_id: str) -> bool:
        """Whether this request is open and has all answers."""
        request = self.open.get(request_id)
        return request is not None and len(request.answers) == len(self.expected)

    @property
    def next_deadline_s(self) -> float | None:
        """The earliest deadline of an open request."""
        while self._deadlines:
            deadline_s, request_id = self._deadlines[0]
            request = self.open.get(request_id)
            if request is not None and request.deadline_s == deadline_s:
                break
            heapq.heappop(self._deadlines)  # it was decided
        return self._deadlines[0][0] if self._deadlines else None

    def due(self, now_s: float) -> Iterator[Request]:
        """Open requests whose time is up. The caller decides each before it asks for the next."""
        while (next_s := self.next_deadline_s) is not None and next_s <= now_s:
            yield self.open[self._deadlines[0][1]]

    def decide(self, request: Request, now_s: float, now_ms: int) -> Result:
        """End a request with the answers so far."""
        del self.open[request.id]
        missing = tuple(name for name in self.expected if name not in request.answers)
        result = Result(
            complete=not missing,
            answers={name: request.answers[name].value for name in self.expected if name in request.answers},
            missing=missing,
            failed={},
            took_s=max(0, now_ms - request.arrived_ms) / 1000,
            why=dict.fromkeys(missing, Why.ABSENT),
            overdue=request.overdue,
        )
        self.remember(request.id, result.label, missing, now_s)
        return result

    def reopen(self, request: Request) -> None:
        """Forget that a request was decided: it has no verdict, and may come again."""
        del self._decided[request.id]
        for name, answer in request.answers.items():
            self._early[request.id, name] = answer

    def remember(self, request_id: str, label: str, missing: Sequence[str], at_s: float) -> None:
        """Note that a request has its verdict."""
        self._decided[request_id] = Decided(at_s, label, set(missing))

    def remember_late(self, request_id: str, name: str, label: str, at_s: float) -> None:
        """Note that a late answer was sent on."""
        decided = self._decided.get(request_id)
        if decided is not None and label != NO_REQUEST:
            decided.missing.discard(name)
        else:
            self._unasked[request_id, name] = at_s

    def expire(self, now_s: float) -> list[LateAnswer]:
        """Forget what was kept for too long. Returns the answers whose request has not come."""
        before_s = now_s - self._keep_s
        given_up: list[LateAnswer] = []
        while self._early:
            key, answer = next(iter(self._early.items()))
            if answer.came_s > before_s and len(self._early) <= self._most:
                break
            del self._early[key]
            self._unasked[key] = now_s
            given_up.append(LateAnswer(answer, NO_REQUEST, _milliseconds(now_s - answer.came_s)))
        while self._decided and (
            next(iter(self._decided.values())).at_s <= before_s or len(self._decided) > self._most
        ):
            self._decided.popitem(last=False)
        while self._unasked and (next(iter(self._unasked.values())) <= before_s or len(self._unasked) > self._most):
            self._unasked.popitem(last=False)
        return given_up


def verdict_headers(request: Request, result: Result) -> Headers:
    """What a verdict says about itself, whatever its value is."""
    headers = [
        (REQUEST, request.id.encode()),
        (RESULT, result.label.encode()),
        (TOOK_MS, str(_milliseconds(result.took_s)).encode()),
    ]
    if result.missing:
        headers.append((MISSING, ",".join(result.missing).encode()))
    if result.overdue:
        headers.append((OVERDUE, b"true"))
    return tuple(headers)


def text_headers(headers: Headers) -> Mapping[str, str]:
    """The headers as text, the last of each name."""
    return {name: value.decode(errors="replace") for name, value in headers if value is not None}


def _milliseconds(duration_s: float) -> int:
    return max(0, round(duration_s * 1000))
