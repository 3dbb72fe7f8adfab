"""The demo's check: it believes the generator, and what was read back, and notices every difference."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from penstock.demo.checking import (
    Check,
    Latencies,
    Results,
    checks_of,
    figure_of_real_time,
    typical_second,
    wrong_with,
)
from penstock.demo.events import LARGE_CENTS, Event, EventSource, MalformedRow, PageEvent, Transaction, Verdict
from penstock.demo.generator import FAULTS, Account, window_name
from penstock.model import DeadLetter, Record

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
NOON_MS = round(NOON.timestamp() * 1000)


def events(seed: int = 3, count: int = 4_000) -> list[Event]:
    chance = EventSource(seed)
    return [chance.next_event(NOON + datetime.timedelta(milliseconds=10 * number)) for number in range(count)]


def letter_of(row: MalformedRow, headers: bool = True) -> DeadLetter:
    told = (("malformed", str(row.number).encode()),) if headers else ()
    record = Record("transactions", 0, row.number, row.card.encode(), row.data, told, NOON_MS)
    return DeadLetter(f"{row.number}", "fraud", record, "SerdeError: no", "SerdeError", "", 1, 0, 0, "judge", "")


def use_of(window_s: int, page: str, seen: int) -> dict[str, object]:
    start = datetime.datetime.fromtimestamp(window_s, datetime.UTC)
    return {"window": {"start": start.isoformat(), "end": ""}, "page": page, "seen": seen}


@pytest.fixture
def account() -> Account:
    account = Account()
    for event in events():
        account.enter(event)
    account.acknowledged = account.sent
    return account


@pytest.fixture
def results(account: Account) -> Results:
    """What comes out when all goes well."""
    results = Results(counted=dict(account.windows))
    for event in events():
        if isinstance(event, Transaction):
            missing = ["geo"] if event.number % 10 == 0 else []
            label = "partial" if missing else "complete"
            results.see_verdict(Verdict(event.number, 0.1, label, missing, 1.5, NOON_MS, "consumer-1"), NOON_MS + 7)
            if event.cents >= LARGE_CENTS:
                row = {"number": event.number, "appended": NOON.isoformat()}
                results.see_large(row, NOON_MS + 3)
        elif isinstance(event, MalformedRow):
            results.see_letter(letter_of(event))
    for name, seen in account.windows.items():
        window, _, page = name.partition(" ")
        results.see_use(use_of(int(window), page, seen))
    return results


def judged(account: Account, results: Results) -> list[str]:
    return wrong_with(checks_of(account, results, with_spark=True, with_real_time=True))


def value_of(name: str, account: Account, results: Results) -> Check:
    checks = checks_of(account, results, with_spark=True, with_real_time=True)
    return next(each for each in checks if each.name == name)


def test_what_is_as_promised_is_found_so(account: Account, results: Results) -> None:
    assert judged(account, results) == []
    assert value_of("lost", account, results).value == "0"


def test_there_is_something_of_everything(account: Account) -> None:
    assert account.transactions > 1_000
    assert account.pages > 1_000
    assert account.malformed > 5
    assert account.large
    assert len(account.windows) > 6


def test_a_transaction_without_a_verdict_is_lost(account: Account, results: Results) -> None:
    del results.verdicts[17]
    (wrong,) = judged(account, results)
    assert wrong == "lost: 1 (such as 17)"


def test_a_verdict_on_nothing_that_was_sent_is_noticed(account: Account, results: Results) -> None:
    results.verdicts[10**9] += 1
    (wrong,) = judged(account, results)
    assert "1 were never sent" in wrong


def test_a_second_verdict_is_counted_and_allowed(account: Account, results: Results) -> None:
    results.verdicts[17] += 2
    assert judged(account, results) == []
    assert value_of("judged again", account, results).value == "2"


def test_a_partial_verdict_must_say_so(account: Account, results: Results) -> None:
    results.see_verdict(Verdict(0, 0.1, "complete", ["geo"], 20.0, NOON_MS, "consumer-1"), NOON_MS)
    (wrong,) = judged(account, results)
    assert "1 without a label" in wrong


def test_an_event_that_was_never_acknowledged_is_noticed(account: Account, results: Results) -> None:
    (wrong,) = judged(replace(account, acknowledged=account.acknowledged - 1), results)
    assert "1 never acknowledged" in wrong


def test_a_malformed_row_that_is_no_dead_letter_is_noticed(account: Account, results: Results) -> None:
    del results.letters[2]
    (wrong,) = judged(account, results)
    assert "such as 2" in wrong


def test_a_good_record_among_the_dead_letters_is_noticed(account: Account, results: Results) -> None:
    results.see_letter(letter_of(MalformedRow(1, "card-1", b""), headers=False))
    (wrong,) = judged(account, results)
    assert "1 letters are of good records" in wrong


def test_a_dead_letter_that_is_there_twice_is_noticed(account: Account, results: Results) -> None:
    results.letters[1] += 1
    (wrong,) = judged(account, results)
    assert "1 are there twice" in wrong


@pytest.mark.parametrize("side", ["counted", "added_up"])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_total_that_differs_is_noticed_on_each_side(account: Account, results: Results, side: str, by: int) -> None:
    totals: dict[str, int] = getattr(results, side)
    totals[next(iter(totals))] += by
    (wrong,) = judged(account, results)
    assert "1 totals differ" in wrong


def test_one_too_many_and_one_too_few_do_not_cancel_out(account: Account, results: Results) -> None:
    first, *_, last = sorted(results.counted)
    results.counted[first] -= 1
    results.counted[last] += 1
    (wrong,) = judged(account, results)
    assert "2 totals differ" in wrong


def test_late_events_that_were_set_aside_count(account: Account, results: Results) -> None:
    name = min(results.added_up)
    window, _, page = name.partition(" ")
    results.added_up[name] -= 1
    at = datetime.datetime.fromtimestamp(int(window) + 3, datetime.UTC)
    results.see_late({"number": 5, "page": page, "at": at.isoformat()})
    assert judged(account, results) == []
    assert "1 of them late" in value_of("page events added up on Spark", account, results).note


def test_a_window_that_is_written_twice_is_noticed(account: Account, results: Results) -> None:
    results.see_use(use_of(int(NOON.timestamp()), "/", 0))
    (wrong,) = judged(account, results)
    assert wrong.startswith("windows written twice: 1")


def test_a_large_payment_that_was_not_passed_on_is_noticed(account: Account, results: Results) -> None:
    del results.large[account.large[0]]
    (wrong,) = judged(account, results)
    assert "1 are lost" in wrong


@pytest.mark.parametrize("fault", FAULTS)
def test_every_lie_of_the_generator_is_noticed(account: Account, results: Results, fault: str) -> None:
    assert judged(FAULTS[fault](account), results) != []


def test_the_same_seed_gives_the_same_events() -> None:
    assert events(5, 500) == events(5, 500)
    assert events(5, 500) != events(6, 500)


def test_every_malformed_row_is_none_that_can_be_decoded() -> None:
    from penstock.demo.events import TRANSACTIONS
    from penstock.errors import SerdeError

    rows = [event for event in events(count=20_000) if isinstance(event, MalformedRow)]
    assert len({row.data[:12] for row in rows}) >= 4
    for row in rows:
        with pytest.raises(SerdeError):
            TRANSACTIONS.decode(row.data)


def test_a_page_event_is_counted_in_its_window() -> None:
    account = Account()
    account.enter(PageEvent(0, "/", "visitor-1", NOON + datetime.timedelta(seconds=19.999)))
    assert account.windows == {window_name(round(NOON.timestamp()) + 10, "/"): 1}


def test_delays_are_told_by_their_order() -> None:
    assert Latencies.of([]) == Latencies(0, 0, 0)
    assert Latencies.of([5]) == Latencies(5, 5, 5)
    assert Latencies.of(list(range(100, 0, -1))) == Latencies(51, 100, 100)


def test_a_typical_second_is_not_that_of_an_outage() -> None:
    quiet = [(second * 1000, 5) for second in range(9) for _ in range(10)]
    assert typical_second([*quiet, (9_500, 8_000)]) == Latencies(5, 5, 5)
    assert typical_second([]) == Latencies()


def passed(*times_ms: tuple[int, int]) -> Results:
    """Payments that were appended and passed on at these times."""
    return Results(
        large_latencies=[(appended_ms, passed_ms - appended_ms) for appended_ms, passed_ms in times_ms],
        large_passed_ms=[passed_ms for _, passed_ms in times_ms],
    )


def test_the_figure_of_real_time_mode_is_of_payments_that_came_while_the_query_ran() -> None:
    while_it_started = [(1_000 + number, 20_000) for number in range(50)]
    while_it_ran = [(30_000 + number * 100, 30_012 + number * 100) for number in range(60)]
    in_hand = [(39_995, 60_000)]
    while_it_was_down = [(40_000 + number * 100, 60_001) for number in range(150)]
    again = [(61_000 + number * 100, 61_012 + number * 100) for number in range(40)]
    results = passed(*while_it_started, *while_it_ran, *in_hand, *while_it_was_down, *again)
    found = figure_of_real_time(results, 40_000)
    assert found.value == "12 ms / 12 ms"
    assert found.note.startswith("of 100 payments while the query ran")
    assert "201 others waited" in found.note


def test_slow_payments_while_the_query_ran_are_not_left_out() -> None:
    at_a_boundary = [(30_000, 30_700), (30_100, 30_700)]
    others = [(31_000 + number, 31_010 + number) for number in range(98)]
    found = figure_of_real_time(passed((1, 20_000), *at_a_boundary, *others), None)
    assert found.value == "10 ms / 700 ms"


def test_payments_beside_a_killed_broker_waited_for_it() -> None:
    found = figure_of_real_time(
        passed((1, 20_000), (29_000, 29_010), (30_000, 32_000), (31_000, 32_000), (33_000, 33_010)),
        None,
        [(29_990, 31_900)],
    )
    assert found.note.startswith("of 2 payments while the query ran")


def test_a_query_that_does_not_come_back_has_figures_of_the_time_before() -> None:
    found = figure_of_real_time(passed((1, 20_000), (29_000, 29_010)), 40_000)
    assert (found.value, found.note[:13]) == ("10 ms / 10 ms", "of 1 payments")
    assert figure_of_real_time(passed((1, 20_000)), None).value == "-"
    assert figure_of_real_time(Results(), 40_000).value == "-"
