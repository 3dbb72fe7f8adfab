"""Checkpoints: stores that keep how far each group has come, who may write that, and what happened on the way.

In go changes, each saved at once or not at all, and only by the owner of the lease; out come checkpoints, state and
history. `open_store` finds the store that a URL means; `format` has the bytes for stores that keep bytes.
"""

from penstock.checkpoints.opening import STORE_URLS, open_store

__all__ = ["STORE_URLS", "open_store"]
