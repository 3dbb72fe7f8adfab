"""A connection that sends through a spool."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

import penstock
from penstock.errors import SpoolInUseError
from tests.clients.names import fresh
from tests.servers import Penstock


def connect_with_spool(url: str, folder: Path) -> penstock.Connection:
    return penstock.connect(url, spool=folder, linger_ms=1, delivery_timeout_s=30)


def test_a_connection_with_a_spool_sends_through_it(url: str, tmp_path: Path) -> None:
    topic = fresh()
    with connect_with_spool(url, tmp_path / "spool") as stream:
        receipts = [stream.send(topic, {"number": number}, "key") for number in range(10)]
        assert receipts[-1].result(20).offset == 9
        stream.flush(20)
        assert stream.unacknowledged == 0
        assert [record.value for record in stream.read(topic)] == [b'{"number":%d}' % number for number in range(10)]


def test_what_it_could_not_deliver_is_delivered_by_the_next(tmp_path: Path) -> None:
    topic = fresh()
    with Penstock(tmp_path / "server") as server:
        url = f"kafka://{server.bootstrap}"
        stream = connect_with_spool(url, tmp_path / "spool")
        server.kill()
        receipt = stream.send(topic, "kept")
        stream.close(timeout_s=0.2)
        assert "stays in the spool" in str(receipt.error)
        server.start()
        with connect_with_spool(url, tmp_path / "spool") as again:
            again.flush(30)
            assert [record.value for record in again.read(topic)] == [b"kept"]


def test_a_forgotten_connection_with_a_spool_lets_go_of_it(url: str, tmp_path: Path) -> None:
    topic = fresh()

    forgotten: list[weakref.ref[penstock.Connection]] = []

    def forget() -> None:
        stream = connect_with_spool(url, tmp_path / "spool")
        stream.send(topic, "x")
        forgotten.append(weakref.ref(stream))
        del stream
        gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed"):
        forget()
    assert forgotten[0]() is None
    with connect_with_spool(url, tmp_path / "spool") as stream:
        stream.flush(20)
        assert [record.value for record in stream.read(topic)] == [b"x"]


def test_what_makes_no_sense_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(penstock.ConfigError, match="pass spool="):
        penstock.connect(url, spool_flush="fsync")
    with pytest.raises(penstock.ConfigError, match="needs no spool: records are stored at once"):
        penstock.connect("memory:x", spool=tmp_path)
    with pytest.raises(penstock.ConfigError, match="connect has no option 'ack'"):
        penstock.connect(url, ack=1)  # type: ignore[call-arg]
    with (
        penstock.connect(url, spool=tmp_path / "spool"),
        pytest.raises(SpoolInUseError, match="spool"),
    ):
        penstock.connect(url, spool=tmp_path / "spool")
