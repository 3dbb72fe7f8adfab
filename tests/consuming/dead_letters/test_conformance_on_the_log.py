"""Dead letters in a topic of the embedded log keep the promises, with processes that are killed for good."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing.conformance.dead_letters import dead_letters
from tests.consuming.dead_letters import openings
from tests.servers import Penstock


@pytest.fixture(scope="module", autouse=True)
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("letters")) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv(openings.URL_VARIABLE, f"kafka://{running.bootstrap}")
        yield running


TestLog = dead_letters(openings.on_the_log)
