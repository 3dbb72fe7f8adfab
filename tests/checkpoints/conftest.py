"""How long the conformance suite of checkpoint stores walks and competes: less in `make test`, more in a soak."""

from __future__ import annotations

import pytest

from penstock.testing.conformance.checkpoints import leases, saving, walks
from tests.sampling import examples


@pytest.fixture(autouse=True)
def quick_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "STEPS", examples(120, soak=4_000))
    monkeypatch.setattr(leases, "CLAIMS", examples(8, soak=100))
    monkeypatch.setattr(saving, "KILLS", examples(2, soak=20))
