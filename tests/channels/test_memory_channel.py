"""The channels in memory pass the suite, as far as one process goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.abc import Acknowledging, Channel
from penstock.channels import open_channel
from penstock.errors import BrokerUnavailableError, ConfigError, InvalidTopicError
from penstock.testing import conformance


def open_lossy(folder: Path) -> Channel:
    return open_channel(f"memory-channel:{folder.name}")


def open_small(folder: Path) -> Channel:
    return open_channel(f"memory-channel:{folder.name}", buffer=50)


def open_answering(folder: Path) -> Channel:
    return open_channel(f"memory-channel:{folder.name}?answers=true&answer_timeout_s=1")


class TestMemoryChannel(conformance.channel(open_lossy, open_lossy, limited=open_small)):  # type: ignore[misc]
    """Without the cases that need a second process: the channel is in the memory of one."""

    test_what_another_process_sends_arrives = None
    test_a_listener_hears_the_sender_that_follows_a_killed_one = None
    test_a_sender_reaches_the_listener_that_follows_a_killed_one = None


class TestAnsweringMemoryChannel(conformance.channel(open_answering, open_answering, answer_s=1.0)):  # type: ignore[misc]
    """Without the cases that need a second process."""

    test_what_another_process_sends_arrives = None
    test_a_listener_hears_the_sender_that_follows_a_killed_one = None
    test_a_sender_reaches_the_listener_that_follows_a_killed_one = None
    test_a_listener_that_is_killed_before_it_answers_is_an_error_for_the_sender = None
    test_what_a_killed_listener_acknowledged_is_all_that_was_sent = None
    test_the_answer_to_a_killed_sender_is_harmless = None


def test_a_second_listener_is_refused() -> None:
    first, second = open_channel("memory-channel:two"), open_channel("memory-channel:two")
    first.listen(1, 0.0)
    with pytest.raises(BrokerUnavailableError, match="another object of this process listens to memory-channel:two"):
        second.listen(1, 0.0)
    first.close()
    second.listen(1, 0.0)
    second.close()


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no setting 'buffr'"):
        open_channel("memory-channel:x?buffr=1")
    with pytest.raises(ConfigError, match="buffer=0 must be an integer >= 1"):
        open_channel("memory-channel:x?buffer=0")
    with pytest.raises(ConfigError, match="answer_timeout_s=0"):
        open_channel("memory-channel:x?answer_timeout_s=0")
    with pytest.raises(InvalidTopicError):
        open_channel("memory-channel:a b")


def test_answers_are_a_setting() -> None:
    assert isinstance(open_channel("memory-channel:x?answers=true"), Acknowledging)
    assert not isinstance(open_channel("memory-channel:x"), Acknowledging)
