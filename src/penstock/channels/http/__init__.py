"""Webhooks in and out: channels on HTTP, by `http:` and `https:` URLs.

Input: requests of other programs, or records to send to them. Output: records for `listen`, answers to the programs, or
requests. `channel` is the `abc.Channel`; `receiver` is its server, `sender` its client, both on aiohttp in an event
loop of their own. `messages` turns records into requests and back, `signatures` signs and checks them, `repeats`
recognises requests that were sent again.
"""

from __future__ import annotations

from penstock.channels.http.channel import open_http

__all__ = ["open_http"]
