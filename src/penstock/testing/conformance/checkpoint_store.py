"""The suite for checkpoint stores."""

from __future__ import annotations

from penstock.abc import CheckpointStore, Features
from penstock.testing.conformance.checkpoint_crashes import CrashCases
from penstock.testing.conformance.checkpoint_leases import LeaseCases
from penstock.testing.conformance.checkpoint_memory import MemoryCases
from penstock.testing.conformance.checkpoint_samples import Spoil
from penstock.testing.conformance.checkpoint_saving import SavingCases
from penstock.testing.conformance.checkpoint_transactions import TransactionCases
from penstock.testing.conformance.checkpoint_walks import WalkCases
from penstock.testing.conformance.suite import Factory, collect


class CheckpointStoreCases(LeaseCases, SavingCases, MemoryCases, WalkCases, TransactionCases, CrashCases):
    """What every checkpoint store promises: leases that fence, changes saved as a whole, and what is left after a
    kill."""


def checkpoint_store(
    factory: Factory[CheckpointStore], features: Features | None = None, *, spoil: Spoil | None = None
) -> type[CheckpointStoreCases]:
    """The cases for a checkpoint store. `factory` opens it.

    `features` are those that it declares itself, unless given. `spoil(store, key)` damages the checkpoint that is
    stored under a key, behind the store's back; without it, the case about damaged checkpoints is skipped.
    """
    cases = collect(CheckpointStoreCases, factory, features)
    cases.spoil = staticmethod(spoil) if spoil is not None else None
    return cases
