"""Dead letters: where records go that were given up, on any storage, to be looked at and redriven.

In come letters, from the loop that gave their records up; out go pages of them for people to look at, and, through
`redrive`, the records themselves, sent again as they were. A storage is a `penstock.abc.DeadLetters`: a topic of the
stream (`stream`), SQLite, PostgreSQL or a file. `open_dead_letters` finds it by its name.

The rules are the same on all of them (`merging`). A letter keeps its place when it is put again, so that who pages
through them misses none. What is put is waiting. Only who took a letter last can settle it, so that a letter that comes
back while it is redriven is not taken for redriven. Nothing is ever removed: letters that were redriven or discarded
can still be looked at.
"""

from __future__ import annotations

from penstock.consuming.dead_letters.headers import (
    REDRIVE_GROUP_HEADER,
    REDRIVE_ID_HEADER,
    Redrive,
    letter_id_of,
    redrive_of,
)
from penstock.consuming.dead_letters.opening import open_dead_letters
from penstock.consuming.dead_letters.redriving import RedriveReport, redrive

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
