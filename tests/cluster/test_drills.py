"""Every drill holds what it claims, whichever broker plays which part."""

from __future__ import annotations

import json
import re
import sys

import pytest

from penstock.cli.commands import cluster as cluster_commands
from penstock.cluster.brokers import Cluster
from penstock.cluster.drills import DRILLS, run
from penstock.cluster.drills.catalogue import Drill
from penstock.cluster.drills.stage import Outcome, Stage
from penstock.cluster.status import status_of
from tests.cli.forked import ForkedCommand, exit_code
from tests.clients.waiting import eventually
from tests.seeds import seed_of

pytestmark = pytest.mark.xdist_group("kafka-cluster")
TIMEOUT_S = 60.0
SHORT = ("high-watermark", "controller-election", "rack-awareness", "reassignment")
"""Drills of a few seconds, which start no broker: `make test` samples these, and the soak runs all."""


@pytest.mark.sampled(1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.soak) for name in DRILLS]
)
def test_a_drill_holds_what_it_claims_and_leaves_the_cluster_whole(cluster: Cluster, name: str) -> None:
    seed = seed_of()
    told: list[str] = []
    outcome = run(name, cluster, seed, told.append)
    assert outcome.claims
    assert outcome.holds, f"seed {seed}: {outcome}\n" + "\n".join(told)
    assert outcome.findings
    eventually("the cluster is whole", lambda: status_of(cluster).is_whole, TIMEOUT_S)


def test_every_drill_says_in_one_line_what_it_does() -> None:
    assert len(DRILLS) == 12
    for drill in DRILLS.values():
        assert drill.summary.endswith((".", "?"))


@pytest.fixture
def command(cluster: Cluster) -> ForkedCommand:
    made = ForkedCommand(cluster.url)
    made.environment = {**made.environment, "PENSTOCK_CLUSTER": str(cluster.folder)}
    return made


@pytest.mark.timeout(300)
def test_a_drill_by_command_shows_what_was_sent_found_and_claimed(command: ForkedCommand) -> None:
    told = command.well("cluster", "drill", "rack-awareness", "--seed", "3").out
    tallies, findings, claims, *why = told.split("\n\n")
    assert re.match(r"case +sent +acknowledged +refused +lost +repeated +longest wait\n", tallies)
    assert re.search(r"the whole drill +\d+\.\d s$", findings)
    assert re.search(r"^acknowledged lost 0 +ok$", claims, re.MULTILINE)
    assert why


@pytest.mark.timeout(300)
def test_a_drill_by_command_as_json_has_the_same(command: ForkedCommand) -> None:
    told = command.well("cluster", "drill", "rack-awareness", "--seed", "3", "--json").json
    assert (told["drill"], told["seed"], told["holds"]) == ("rack-awareness", 3, True)
    assert all(told["claims"].values())
    (tally,) = told["tallies"]
    assert tally["acknowledged"] > 0
    assert tally["lost"] == 0
    assert told["findings"]
    assert told["why"]


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_claim_that_does_not_hold_is_shown_and_ends_the_command_with_1(
    cluster: Cluster, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(stage: Stage) -> Outcome:
        return Outcome("Water does not.", claims={"water runs downhill": True, "water runs uphill": False})

    monkeypatch.setitem(DRILLS, "water", Drill("water", play))
    monkeypatch.setattr(cluster_commands, "silence_log", lambda: None)
    words = ["penstock", "cluster", "drill", "water", "--seed", "7", "--folder", str(cluster.folder)]
    monkeypatch.setattr(sys, "argv", [*words, *(["--json"] if as_json else [])])
    assert exit_code() == 1
    told = capsys.readouterr()
    assert "with seed 7, this did not hold: water runs uphill" in told.err
    if as_json:
        assert json.loads(told.out)["holds"] is False
    else:
        assert re.search(r"^water runs downhill +ok\nwater runs uphill +WRONG$", told.out, re.MULTILINE)
