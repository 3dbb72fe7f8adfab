"""Dead letters: records that were given up, stored in any backend, to be inspected and redriven.

The consumer's loop puts letters in. Pages of them come out for people to inspect and, through `redrive`, the records
themselves, sent again unchanged. A backend is a `penstock.abc.DeadLetters`: a topic of the stream (`stream`), SQLite,
PostgreSQL or a file. `open_dead_letters` opens one by name.

The rules are the same for all backends (`merging`). A letter keeps its position when it is put again, so that a reader
who pages through them misses none. A letter that is put is waiting. Only the last taker of a letter can settle it, so
that a letter that fails again during a redrive does not count as redriven. Nothing is ever removed: redriven and
discarded letters can still be inspected.
"""

from __future__ import annotations

from penstock.dead_letters.headers import REDRIVE_GROUP_HEADER, REDRIVE_ID_HEADER, Redrive, letter_id_of, redrive_of
from penstock.dead_letters.opening import open_dead_letters
from penstock.dead_letters.redriving import RedriveReport, redrive

__all__ = [
    "REDRIVE_GROUP_HEADER",
    "REDRIVE_ID_HEADER",
    "Redrive",
    "RedriveReport",
    "letter_id_of",
    "open_dead_letters",
    "redrive",
    "redrive_of",
]
