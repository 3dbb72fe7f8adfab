"""Rows of a query that a target refuses, each by itself: to the dead letters of the topic that the query reads.

The letters are put before the rest of the batch is written. A batch that is repeated after a crash puts them again
under the same ids, so there is one letter for each row. While the dead letters cannot be reached, the batch fails, and
nothing is lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import DeliveryError
from penstock.model import DeadLetter
from penstock.model.clock import SystemClock
from penstock.model.letter import query_row
from penstock.spark.values.undecodable import Letters

if TYPE_CHECKING:
    from penstock.spark.sink.target import QueryIdentity

logger = logging.getLogger(__name__)

QUERY_HEADER: Final = "penstock-query"
TARGET_HEADER: Final = "penstock-target"
BATCH_HEADER: Final = "penstock-batch"

_PAGE_LETTERS: Final = 1_000
"""So many are put at a time, and held in memory."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    value: bytes
    """The row as a JSON object."""
    reason: str
    error_kind: str = DeliveryError.__name__
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Where the rows go that a target of a query refuses. `group` and `version` name the pipeline in the letter."""

    letters: Letters
    group: str
    version: str

    def put(self, identity: QueryIdentity, label: str, batch_id: int, rows: Iterable[RefusedRow]) -> int:
        """Return, with their number, when these rows of a batch are durable in the dead letters.

        The id of a letter is made of the query, the target, the batch, what the row says, and how many rows of the
        batch before it say the same: the order in which Spark brings the rows does not matter. In complete mode every
        batch brings all rows again, so the batch has no part in the id.
        """
        made = self.letters_of(identity, label, batch_id, rows)
        page = list(itertools.islice(made, _PAGE_LETTERS))
        if not page:
            return 0
        logger.warning(
            "%s of pipeline %s: rows of batch %d go to the dead letters in %s, the first one because of %s",
            page[0].handler,
            identity.pipeline,
            batch_id,
            self.letters,
            page[0].error,
        )
        count = 0
        with contextlib.closing(self.letters.open()) as opened:
            while page:
                opened.letters.put(page)
                count += len(page)
                page = list(itertools.islice(made, _PAGE_LETTERS))
        return count

    def letters_of(
        self, identity: QueryIdentity, label: str, batch_id: int, rows: Iterable[RefusedRow]
    ) -> Iterator[DeadLetter]:
        """The letters that `put` stores."""
        now_ms = SystemClock().wall_ms()
        query = f"{self.group}.{identity.query}"
        headers = (
            (QUERY_HEADER, query.encode()),
            (TARGET_HEADER, label.encode()),
            (BATCH_HEADER, str(batch_id).encode()),
        )
        source = "\x1f".join((self.group, identity.id, "" if identity.mode == "complete" else str(batch_id), ""))
        alike: Counter[bytes] = Counter()
        for row in rows:
            digest = hashlib.blake2b(source.encode() + row.value, digest_size=16).digest()
            alike[digest] += 1
            yield DeadLetter(
                id=hashlib.blake2b(digest + str(alike[digest]).encode(), digest_size=12).hexdigest(),
                group=self.group,
                record=query_row(query, batch_id, row.value, headers),
                error=row.reason if row.traceback else f"{row.error_kind}: {label}: {row.reason}",
                error_kind=row.error_kind,
                traceback=row.traceback,
                attempts=1,
                first_ms=now_ms,
                last_ms=now_ms,
                handler=f"query {identity.query}",
                handler_version=self.version,
            )
