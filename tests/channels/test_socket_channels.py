"""What channels on sockets share: they begin again after an error, and warn now and then."""

from __future__ import annotations

import errno
import logging
import socket
from contextlib import closing

import pytest

from penstock.channels import open_channel
from penstock.channels.rare_warnings import EVERY_S, RareWarnings
from penstock.channels.socket_channel import SocketChannel
from penstock.errors import BrokerUnavailableError
from penstock.model import NewRecord
from tests.consuming.eventually import wait_until

METRIC = NewRecord("x", b"name:1|c")


@pytest.mark.parametrize("scheme", ["udp://{}:{}?linger_s=0", "udp://{}:{}?raw=true", "statsd://{}:{}"])
def test_a_listener_whose_network_failed_begins_again(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        url = scheme.format(*probe.getsockname())
    with closing(open_channel(url)) as listener, closing(open_channel(url)) as sender:
        listener.listen(1, 0.0)
        assert isinstance(listener, SocketChannel)
        receiver = listener.receiver
        assert receiver is not None

        def fails() -> float:
            raise OSError(errno.ENETDOWN, "Network is down")

        with monkeypatch.context() as broken:
            broken.setattr(receiver, "step", fails)
            receiver.thread.wake()
            with pytest.raises(BrokerUnavailableError, match=r"listening at .* ended: Network is down"):
                listener.listen(1, 20.0)
        wait_until(lambda: not receiver.is_running)
        listener.listen(1, 0.0)
        sender.send([METRIC])
        assert len(listener.listen(1, 20.0)) == 1


def test_warnings_of_a_kind_are_rare_and_say_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    warnings = RareWarnings(logging.getLogger("penstock.rare"), "udp x", lambda: now_s)
    with caplog.at_level(logging.WARNING):
        assert warnings.warn("lost", "%d records", 1)
        assert not warnings.warn("lost", "%d records", 2)
        assert not warnings.warn("lost", "%d records", 3)
        assert warnings.warn("foreign", "a datagram")
        now_s += EVERY_S
        assert warnings.warn("lost", "%d records", 4)
    assert [record.getMessage() for record in caplog.records] == [
        "udp x: 1 records",
        "udp x: a datagram",
        "udp x: 4 records (2 such warnings were left out)",
    ]
