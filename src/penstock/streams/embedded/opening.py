"""`log:` URLs, as `penstock.streams.schemes` finds them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from penstock.streams.embedded.lifeline import Lifeline
from penstock.streams.embedded.starting import find_or_start
from penstock.streams.kafka.stream import KafkaStream
from penstock.streams.options import options_of
from penstock.streams.url import Host, log_folder


def open_log(url: str, given: Mapping[str, Any]) -> KafkaStream:
    """The log in a folder of this machine. Finds its broker, or starts it."""
    folder = log_folder(url)
    assert folder is not None
    options = options_of(given)
    found = find_or_start(
        folder,
        exit_when_idle_s=options.exit_when_idle_s,
        deadline_s=time.monotonic() + options.connect_timeout_s,
    )
    lifeline = Lifeline(folder, found, options)
    bootstrap = str(Host(found.address.host, found.address.port))
    return KafkaStream(url, bootstrap, options, lifeline, log_folder=folder)
