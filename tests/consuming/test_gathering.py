"""`App.gather`: one verdict for each request, of the answers that come as records before its time is up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming.deadlines.answer_reader import AnswerReader
from penstock.consuming.deadlines.call import Result, Why
from penstock.consuming.deadlines.gathering import NO_REQUEST, Answer, Gathering, Request, text_headers
from penstock.dead_letters import open_dead_letters
from penstock.errors import ConfigError, HandlerError
from penstock.model import DeadLetterFilter, NewRecord, Record
from penstock.serde import Topic
from penstock.streams.memory import MemoryStream
from tests.clients.waiting import eventually

LONG_MS: Final = 60_000.0
"""A deadline that no test reaches unless something is broken."""
SHORT_MS: Final = 20.0
NAMES: Final = ("amount", "geo")


@dataclass
class Payment:
    id: int
    cents: int


@dataclass
class Score:
    payment: int
    name: str
    points: int


@dataclass
class Verdict:
    payment: int
    points: int
    label: str
    missing: list[str]


payments = Topic("payments", Payment)
scores = Topic("scores", Score)
verdicts = Topic("verdicts", Verdict)


def judge(payment: Payment, result: Result) -> Verdict:
    points = sum(score.points for score in result.answers.values())
    return Verdict(payment.id, points, result.label, list(result.missing))


def id_of(payment: Payment) -> int:
    return payment.id


def answered(score: Score) -> tuple[int, str]:
    return score.payment, score.name


class Bank:
    """An app with a gathering on topics in memory."""

    def __init__(self, partitions: int = 1) -> None:
        self.stream = MemoryStream(partitions=partitions)
        self.store = MemoryCheckpoints()
        self.running: list[App] = []

    def start(self, within_ms: float = LONG_MS, function: Any = judge, **options: Any) -> App:
        app = App(self.stream, group="fraud", checkpoints=self.store)
        given = {"expected": NAMES, "answer_to": answered, "late": "late", **options}
        answers = given.pop("answers", scores)
        app.gather(payments, answers, to=verdicts, within_ms=within_ms, request_id=id_of, **given)(function)
        app.start()
        self.running.append(app)
        eventually("the app gathers", lambda: any(each._owned for each in app.gatherers))
        return app

    def stop(self) -> None:
        for app in self.running:
            app.stop()
        eventually("the apps end", lambda: not any(app._running for app in self.running))
        self.running = []

    def send(self, topic: Topic[Any], value: object, partition: int = 0, timestamp_ms: int | None = None) -> None:
        record = NewRecord(topic.name, topic.serde.encode(value, topic.name), None, (), timestamp_ms, partition)
        for receipt in self.stream.open_topic(topic.name).append([record]):
            receipt.result(10)

    def send_early(self, score: Score, partition: int = 0) -> None:
        """Send an answer, and wait until it is known, so that no deadline can pass before."""
        [consumer] = self.running[-1].gatherers
        self.send(scores, score, partition)

        def is_known() -> bool:
            owned = consumer._owned.get(partition)
            return owned is not None and (str(score.payment), score.name) in owned.gathering._early

        eventually(f"{score} is known", is_known)

    def records(self, topic: str, partition: int = 0) -> list[Record]:
        if topic not in self.stream.topics():
            return []
        opened = self.stream.open_topic(topic)
        return list(opened.read(partition, 0, 1_000, 0.0))

    def verdicts(self, count: int, partition: int = 0) -> list[Verdict]:
        eventually(f"{count} verdicts", lambda: len(self.records("verdicts", partition)) >= count)
        found = [verdicts.decode(record.value) for record in self.records("verdicts", partition)]
        return [verdict for verdict in found if verdict is not None]


@pytest.fixture
def bank() -> Iterator[Bank]:
    bank = Bank()
    yield bank
    bank.stop()
    bank.stream.close()


def test_a_request_gets_its_verdict_as_soon_as_all_answers_are_there(bank: Bank) -> None:
    bank.start()
    bank.send(payments, Payment(1, 100))
    bank.send(scores, Score(1, "amount", 10))
    bank.send(scores, Score(1, "geo", 5))
    assert bank.verdicts(1) == [Verdict(1, 15, "complete", [])]
    about = text_headers(bank.records("verdicts")[0].headers)
    assert (about["penstock-request"], about["penstock-result"]) == ("1", "complete")
    assert "penstock-missing" not in about


def test_answers_are_read_once_their_partition_is_owned_as_they_are_dropped_before(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, owned = AnswerReader.add, []

    def noted(reader: AnswerReader, partition: int, start: int) -> None:
        take: Any = reader._take
        owned.append(partition in take.func.__self__._owned)
        add(reader, partition, start)

    monkeypatch.setattr(AnswerReader, "add", noted)
    bank.start(answers={"amount": "amounts", "geo": "geos"}, expected=None, answer_to=lambda answer: answer)
    eventually("both topics of answers are read", lambda: len(owned) == 2)
    assert all(owned)


def test_an_app_tells_how_its_gathering_gets_on(bank: Bank) -> None:
    app = bank.start()
    assert app.unready() == []
    assert app.stuck() == []
    bank.send(payments, Payment(1, 100))
    eventually("the request is in hand", lambda: app.health()[0].partitions[0].in_flight == 1)
    assert app.health()[0].lag == 1
    bank.send(scores, Score(1, "amount", 10))
    bank.send(scores, Score(1, "geo", 5))
    eventually("nothing is left", lambda: app.health()[0].lag == 0)
    bank.send(payments, Payment(1, 100))
    eventually("it is ignored", lambda: app.gatherers[0].counts.ignored == 1)
    assert app.gatherers[0].counts.succeeded == 1
    [health] = app.health()
    assert (health.topic, health.group, health.is_healthy, health.delivered) == ("payments", "fraud", True, 1)


def test_answers_that_come_before_their_request_are_kept(bank: Bank) -> None:
    bank.start()
    bank.send(scores, Score(1, "geo", 5))
    bank.send(scores, Score(1, "amount", 10))
    bank.send(payments, Payment(1, 100))
    assert bank.verdicts(1) == [Verdict(1, 15, "complete", [])]


def test_at_the_deadline_the_verdict_names_what_is_missing_and_late_answers_follow(bank: Bank) -> None:
    bank.start(SHORT_MS)
    bank.send_early(Score(1, "geo", 5))
    bank.send(payments, Payment(1, 100))
    assert bank.verdicts(1) == [Verdict(1, 5, "partial", ["amount"])]
    about = text_headers(bank.records("verdicts")[0].headers)
    assert (about["penstock-result"], about["penstock-missing"]) == ("partial", "amount")
    assert int(about["penstock-took-ms"]) >= SHORT_MS - 1
    bank.send(scores, Score(1, "amount", 10))
    eventually("the late answer", lambda: bank.records("late"))
    [late] = bank.records("late")
    assert scores.decode(late.value) == Score(1, "amount", 10)
    said = text_headers(late.headers)
    assert (said["penstock-request"], said["penstock-answer"], said["penstock-result"]) == ("1", "amount", "partial")


def test_a_repeated_request_gets_no_second_verdict_and_a_repeated_answer_does_not_count(bank: Bank) -> None:
    bank.start()
    for _ in range(2):
        bank.send(payments, Payment(1, 100))
        bank.send(scores, Score(1, "amount", 10))
    for _ in range(2):
        bank.send(scores, Score(1, "geo", 5))
        bank.send(payments, Payment(1, 100))
    bank.send(payments, Payment(2, 100))
    bank.send(scores, Score(2, "amount", 1))
    bank.send(scores, Score(2, "geo", 1))
    assert [verdict.payment for verdict in bank.verdicts(2)] == [1, 2]
    assert bank.records("late") == []


def test_each_name_may_have_a_topic_of_its_own(bank: Bank) -> None:
    amounts, places = Topic("amounts", Score), Topic("places", Score)
    bank.start(answers={"amount": amounts, "geo": places}, expected=None, answer_to=lambda score: score.payment)
    bank.send(payments, Payment(1, 100))
    bank.send(amounts, Score(1, "", 10))
    bank.send(places, Score(1, "", 5))
    assert bank.verdicts(1) == [Verdict(1, 15, "complete", [])]


def test_a_request_that_was_not_decided_when_the_app_ended_is_overdue_and_has_the_answers_that_came_meanwhile(
    bank: Bank,
) -> None:
    bank.start()
    eventually("the topics", lambda: {"payments", "scores", "verdicts"} <= set(bank.stream.topics()))
    bank.stop()
    bank.send(scores, Score(1, "geo", 5))
    bank.send(payments, Payment(1, 100), timestamp_ms=1)
    bank.start(SHORT_MS)
    assert bank.verdicts(1) == [Verdict(1, 5, "partial", ["amount"])]
    assert text_headers(bank.records("verdicts")[0].headers)["penstock-overdue"] == "true"


def test_an_owner_that_knows_only_the_topics_repeats_no_verdict_and_no_late_answer(bank: Bank) -> None:
    """As after a kill that came before any position was saved."""
    bank.start(SHORT_MS)
    for number in range(5):
        bank.send_early(Score(number, "geo", 5))
        bank.send(payments, Payment(number, 100))
    assert len(bank.verdicts(5)) == 5
    for number in range(3):
        bank.send(scores, Score(number, "amount", 10))
    eventually("three late answers", lambda: len(bank.records("late")) == 3)
    bank.stop()
    bank.store = MemoryCheckpoints()
    bank.send(scores, Score(3, "amount", 10))
    bank.send(payments, Payment(9, 100))
    bank.start(SHORT_MS)
    assert [verdict.payment for verdict in bank.verdicts(6)] == [0, 1, 2, 3, 4, 9]
    eventually("the late answer that came meanwhile", lambda: len(bank.records("late")) == 4)
    late = [text_headers(record.headers)["penstock-request"] for record in bank.records("late")]
    assert late == ["0", "1", "2", "3"]


def test_a_process_whose_lease_may_have_expired_gives_no_verdict_until_it_is_renewed(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    [consumer] = bank.start(SHORT_MS).gatherers
    gathering = consumer._owned[0].gathering
    monkeypatch.setattr(consumer._feed, "holds", lambda partition: False)
    bank.send(payments, Payment(1, 100))
    bank.send(scores, Score(1, "amount", 10))
    bank.send(scores, Score(1, "geo", 5))
    eventually("all is known", lambda: gathering.is_ready("1"))
    now_s = consumer._clock.monotonic_s()
    eventually("its time is up", lambda: (gathering.next_deadline_s or 0) < consumer._clock.monotonic_s() > now_s)
    assert "1" in gathering.open
    assert bank.records("verdicts") == []
    monkeypatch.undo()
    assert bank.verdicts(1) == [Verdict(1, 15, "complete", [])]


def test_verdicts_and_late_answers_are_in_the_partition_of_their_request() -> None:
    bank = Bank(partitions=3)
    try:
        bank.start(SHORT_MS)
        bank.send_early(Score(1, "geo", 5), partition=2)
        bank.send(payments, Payment(1, 100), partition=2)
        assert bank.verdicts(1, partition=2) == [Verdict(1, 5, "partial", ["amount"])]
        bank.send(scores, Score(1, "amount", 5), partition=2)
        eventually("the late answer", lambda: bank.records("late", 2))
    finally:
        bank.stop()
        bank.stream.close()


def test_what_cannot_be_decoded_or_judged_becomes_a_dead_letter_and_the_rest_goes_on(bank: Bank) -> None:
    def strict(payment: Payment, result: Result) -> Verdict:
        if payment.cents < 0:
            raise ValueError("a negative amount")
        return judge(payment, result)

    bank.start(SHORT_MS, strict)
    eventually("the topic", lambda: "payments" in bank.stream.topics())
    bank.stream.open_topic("payments").append([NewRecord("payments", b"nonsense")])
    bank.send(payments, Payment(1, -5))
    bank.send(scores, Score(1, "unknown", 5))
    bank.send(payments, Payment(2, 100))
    assert [verdict.payment for verdict in bank.verdicts(1)] == [2]
    letters = open_dead_letters("payments.dlq", bank.stream)
    eventually("three letters", lambda: letters.count(DeadLetterFilter()) == 3)
    errors = [letter.error for letter in letters.browse(DeadLetterFilter(), after=None, limit=10)]
    letters.close()
    assert any("a negative amount" in error for error in errors)
    assert any("'unknown' is not expected" in error for error in errors)


def test_answers_need_as_many_partitions_as_requests(bank: Bank) -> None:
    bank.stream.create_topic("payments", 2)
    bank.stream.create_topic("scores", 3)
    app = App(bank.stream, group="fraud", checkpoints=bank.store)
    app.gather(payments, scores, to=verdicts, within_ms=5, request_id=id_of, answer_to=answered, expected=NAMES)(judge)
    with pytest.raises(ConfigError, match="'scores' has 3 partitions, and 'payments' has 2"):
        app.run()


def test_a_run_with_an_end_returns_when_every_request_has_its_verdict(bank: Bank) -> None:
    for topic in (payments, scores):
        bank.stream.create_topic(topic.name, 1)
    for number in range(3):
        bank.send(payments, Payment(number, 100))
        bank.send(scores, Score(number, "geo", 5))
    app = App(bank.stream, group="fraud", checkpoints=bank.store)
    app.gather(payments, scores, to=verdicts, within_ms=SHORT_MS, request_id=id_of, answer_to=answered, expected=NAMES)(
        judge
    )
    app.run(end="latest")
    assert [verdict.missing for verdict in bank.verdicts(3)] == [["amount"]] * 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"within_ms": 0}, "within_ms=0 must be a positive number"),
        ({"expected": ()}, "must be the names of the answers"),
        ({"expected": ("a", "a")}, "different names"),
        ({"late": "scores"}, "'scores' is given twice"),
        ({"request_id": "id"}, "request_id='id' must be a function"),
        ({"answers": {"amount": "scores"}}, "omit expected"),
        ({"most": 0}, "most=0 must be an integer"),
    ],
)
def test_a_wrong_declaration_is_refused(options: dict[str, Any], told: str) -> None:
    given = {"within_ms": 20, "request_id": id_of, "answer_to": answered, "expected": NAMES, **options}
    answers = given.pop("answers", scores)
    with pytest.raises(ConfigError, match=told):
        App("memory:", group="fraud").gather(payments, answers, to=verdicts, **given)(judge)


def test_the_function_of_a_gathering_takes_two_arguments_and_is_no_coroutine() -> None:
    app = App("memory:", group="fraud")
    declare = app.gather(
        payments, scores, to=verdicts, within_ms=20, request_id=id_of, answer_to=answered, expected=NAMES
    )

    async def waits(payment: Payment, result: Result) -> Verdict:
        return judge(payment, result)

    with pytest.raises(HandlerError, match="async def"):
        declare(waits)
    with pytest.raises(HandlerError, match="the request and the result"):
        declare(lambda payment: None)  # type: ignore[type-var]
    declare(judge)
    with pytest.raises(HandlerError, match="both handle topic 'payments'"):
        declare(judge)
    with pytest.raises(HandlerError, match="both handle topic 'payments'"):
        app.handle(payments)(lambda payment: None)


# The state of one partition, without threads and with times that are passed in.


def request(name: str, deadline_s: float = 10.0) -> Request:
    return Request(name, Record("payments", 0, 0, None, b""), name, 0, deadline_s, False)


def answer(to: str, name: str, came_s: float = 0.0) -> Answer:
    return Answer(to, name, f"{name} of {to}", Record("scores", 0, 0, None, b""), came_s)


def test_requests_are_due_in_the_order_of_their_deadlines() -> None:
    gathering = Gathering(NAMES, 30.0, 100)
    for name, deadline_s in (("late", 3.0), ("soon", 1.0), ("next", 2.0)):
        assert gathering.add_request(request(name, deadline_s))
    assert gathering.next_deadline_s == 1.0
    found = []
    for each in gathering.due(2.0):
        found.append(each.id)
        result = gathering.decide(each, 2.0, 2_000)
        assert (result.missing, result.why, result.took_s) == (NAMES, dict.fromkeys(NAMES, Why.ABSENT), 2.0)
    assert found == ["soon", "next"]
    assert gathering.next_deadline_s == 3.0


def test_an_answer_whose_request_does_not_come_is_given_up_once() -> None:
    gathering = Gathering(NAMES, 30.0, 100)
    assert gathering.add_answer(answer("a", "geo", 1.0)) is None
    assert gathering.expire(30.9) == []
    [late] = gathering.expire(31.5)
    assert (late.label, late.answer.request, late.late_ms) == (NO_REQUEST, "a", 30_500)
    gathering.add_answer(answer("a", "geo", 32.0))
    assert gathering.expire(61.0) == [], "it was a repeat"
    assert gathering.repeated == 1


def test_memory_is_bounded() -> None:
    gathering = Gathering(NAMES, 30.0, 10)
    for number in range(100):
        gathering.add_answer(answer(f"early {number}", "geo"))
    assert len(gathering.expire(0.0)) == 90
    for number in range(100):
        each = request(f"decided {number}")
        gathering.add_request(each)
        gathering.decide(each, 0.0, 0)
    gathering.expire(0.0)
    assert gathering.add_request(request("decided 1")), "the oldest were forgotten"
    assert not gathering.add_request(request("decided 99"))


def test_a_late_answer_says_how_late_it_was() -> None:
    gathering = Gathering(NAMES, 30.0, 10)
    each = request("a")
    gathering.add_request(each)
    gathering.decide(each, 10.0, 0)
    late = gathering.add_answer(answer("a", "geo", 10.25))
    assert late is not None
    assert (late.label, late.late_ms) == ("partial", 250)
    assert gathering.add_answer(answer("a", "geo", 11.0)) is None, "the second is a repeat"


def test_a_request_that_is_reopened_keeps_its_answers() -> None:
    gathering = Gathering(NAMES, 30.0, 10)
    first, again = request("a", 1.0), request("a", 5.0)
    gathering.add_request(first)
    gathering.add_answer(answer("a", "geo"))
    gathering.decide(first, 0.5, 0)
    gathering.reopen(first)
    assert gathering.add_request(again)
    assert set(again.answers) == {"geo"}
    assert gathering.next_deadline_s == 5.0
