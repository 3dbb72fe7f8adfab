"""Processes that tests kill have everything loaded when they begin, so that kills hit what they do."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from tests.forking import FORKING, LOADED


def tell_what_is_loaded(said: Connection) -> None:
    said.send(set(sys.modules))
    said.close()


def test_what_is_to_be_loaded_is_there_when_a_process_begins() -> None:
    ours, theirs = FORKING.Pipe(duplex=False)
    process = FORKING.Process(target=tell_what_is_loaded, args=(theirs,))
    process.start()
    theirs.close()
    assert ours.poll(60), "the process said nothing"
    assert set(LOADED) <= ours.recv()
    process.join(60)
    assert process.exitcode == 0
    ours.close()
