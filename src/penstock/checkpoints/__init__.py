"""Checkpoints: stores for the progress of each group, who may write it, and its history.

Changes go in, each saved as a whole or not at all, and only by the owner of the lease; checkpoints, state and history
come out. `open_store` opens the store that a URL names; `format` has the encoding for stores of bytes.
"""

from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.checkpoints.opening import STORE_URLS, open_store
from penstock.checkpoints.sqlite.store import SqliteCheckpoints

__all__ = ["STORE_URLS", "MemoryCheckpoints", "SqliteCheckpoints", "open_store"]
