"""Registered webhooks: each record is sent to every receiver that registered for it, by `webhooks:` URLs.

Input: records, and registrations of receivers. Output: signed requests to each of them. `registry` keeps both in
SQLite: the receivers, and the messages until all have them. `delivery` sends them, each receiver at its own pace, with
`penstock.channels.http`. `registration` serves the HTTP interface by which receivers register. `channel` is the
`abc.Channel`.
"""

from __future__ import annotations

from penstock.channels.webhooks.channel import open_webhooks
from penstock.channels.webhooks.registry import Registry

__all__ = ["Registry", "open_webhooks"]
