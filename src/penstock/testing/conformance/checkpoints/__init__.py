"""The suite for checkpoint stores: pass a function that opens yours, and get a class of tests."""

from __future__ import annotations

from penstock.abc import CheckpointStore, Features
from penstock.testing.conformance.checkpoints.leases import LeaseCases
from penstock.testing.conformance.checkpoints.memory import MemoryCases
from penstock.testing.conformance.checkpoints.samples import Spoil
from penstock.testing.conformance.checkpoints.saving import SavingCases, StoreCrashCases
from penstock.testing.conformance.checkpoints.transactions import TransactionCases
from penstock.testing.conformance.checkpoints.walks import WalkCases
from penstock.testing.conformance.suite import Factory, collect


class CheckpointStoreCases(LeaseCases, SavingCases, MemoryCases, WalkCases, TransactionCases, StoreCrashCases):
    """What every checkpoint store promises: leases that fence, changes saved as a whole, and what is left after a
    kill."""


def checkpoint_store(
    factory: Factory[CheckpointStore], features: Features | None = None, *, spoil: Spoil | None = None
) -> type[CheckpointStoreCases]:
    """The cases for a checkpoint store. `factory` opens it.

    `features` are those that it declares itself, unless given. `spoil(store, key)` damages the stored checkpoint of a
    key directly; without it, the case about damaged checkpoints is skipped.
    """
    cases = collect(CheckpointStoreCases, factory, features)
    cases.spoil = staticmethod(spoil) if spoil is not None else None
    return cases
