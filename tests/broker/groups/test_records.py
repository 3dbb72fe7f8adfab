"""The bytes of `__consumer_offsets` are Kafka's own. The samples were written by the classes of Apache Kafka 4.3.1."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups.records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    UnknownKey,
    group_key,
    group_value,
    offset_key,
    offset_value,
    read_group_value,
    read_key,
    read_offset_value,
)
from penstock.broker.stored_fields import DamagedRecordError
from tests import real_parts

OFFSET_KEYS = {
    0: "000000096f72646572732dc3a900017400000007",
    1: "000100096f72646572732dc3a900017400000007",
}
GROUP_KEY = "000200096f72646572732dc3a9"
OFFSET_VALUES = {
    0: "00000000001cbe991a1400056dc3a974610000018bcfe56800",
    1: "00010000001cbe991a1400056dc3a974610000018bcfe568000000018bcfee8fc0",
    2: "00020000001cbe991a1400056dc3a974610000018bcfe56800",
    3: "00030000001cbe991a140000000400056dc3a974610000018bcfe56800",
    4: "00040000001cbe991a1400000004066dc3a974610000018bcfe5680000",
}
OFFSET_VALUE_WITH_TOPIC_ID = (
    "00040000001cbe991a1400000004066dc3a974610000018bcfe5680001001000000000000000010000000000000002"
)
GROUP_VALUES = {
    0: "00000008636f6e73756d657200000003000572616e67650003632d31000000020003632d31000163000a2f3132372e302e302e31"
    "0000afc8000000030001020000000209080003632d32000163000a2f3132372e302e302e310000afc800000003000102000000020908",
    1: "00010008636f6e73756d657200000003000572616e67650003632d31000000020003632d31000163000a2f3132372e302e302e31"
    "000493e00000afc8000000030001020000000209080003632d32000163000a2f3132372e302e302e31000493e00000afc800000003"
    "000102000000020908",
    2: "00020008636f6e73756d657200000003000572616e67650003632d310000018bcfe5687b000000020003632d31000163000a2f31"
    "32372e302e302e31000493e00000afc8000000030001020000000209080003632d32000163000a2f3132372e302e302e31000493e0"
    "0000afc800000003000102000000020908",
    3: "00030008636f6e73756d657200000003000572616e67650003632d310000018bcfe5687b000000020003632d31ffff000163000a"
    "2f3132372e302e302e31000493e00000afc8000000030001020000000209080003632d320004696e7374000163000a2f3132372e30"
    "2e302e31000493e00000afc800000003000102000000020908",
    4: "000409636f6e73756d6572000000030672616e676504632d310000018bcfe5687b0304632d310002630b2f3132372e302e302e31"
    "000493e00000afc8040001020309080004632d3205696e737402630b2f3132372e302e302e31000493e00000afc804000102030908"
    "0000",
}
EMPTY_GROUPS = {3: "0003000000000000ffffffff000000000000000500000000", 4: "00040100000000000000000000000000050100"}

COMMITTED_AT_MS, EXPIRES_AT_MS, STATE_SINCE_MS = 1_700_000_000_000, 1_700_000_600_000, 1_700_000_000_123


def member(member_id: str, *, instance_id: str | None = None, rebalance_timeout_ms: int = 300_000) -> StoredMember:
    return StoredMember(
        member_id, instance_id, "c", "/127.0.0.1", rebalance_timeout_ms, 45_000, b"\x00\x01\x02", b"\x09\x08"
    )


def group(version: int) -> StoredGroup:
    """The sample group, as much of it as a version can say."""
    rebalance_timeout_ms = 300_000 if version >= 1 else 45_000
    return StoredGroup(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="c-1",
        state_since_ms=STATE_SINCE_MS if version >= 2 else None,
        members=(
            member("c-1", rebalance_timeout_ms=rebalance_timeout_ms),
            member("c-2", instance_id="inst" if version >= 3 else None, rebalance_timeout_ms=rebalance_timeout_ms),
        ),
    )


def test_keys_are_written_as_kafka_writes_them() -> None:
    assert offset_key("orders-é", "t", 7).hex() == OFFSET_KEYS[1]
    assert group_key("orders-é").hex() == GROUP_KEY


@pytest.mark.parametrize("version", OFFSET_KEYS)
def test_offset_keys_of_both_versions_are_read(version: int) -> None:
    assert read_key(bytes.fromhex(OFFSET_KEYS[version])) == OffsetKey("orders-é", "t", 7)


def test_group_keys_are_read() -> None:
    assert read_key(bytes.fromhex(GROUP_KEY)) == GroupKey("orders-é")


def test_an_offset_is_written_as_kafka_writes_it() -> None:
    value = offset_value(CommittedOffset(123_456_789_012, 4, "méta", COMMITTED_AT_MS))
    assert value.hex() == OFFSET_VALUES[3]


def test_an_offset_with_an_expiry_of_its_own_is_written_as_kafka_writes_it() -> None:
    value = offset_value(CommittedOffset(123_456_789_012, -1, "méta", COMMITTED_AT_MS, EXPIRES_AT_MS))
    assert value.hex() == OFFSET_VALUES[1]


@pytest.mark.parametrize("version", OFFSET_VALUES)
def test_offsets_of_every_version_are_read(version: int) -> None:
    assert read_offset_value(bytes.fromhex(OFFSET_VALUES[version])) == CommittedOffset(
        offset=123_456_789_012,
        leader_epoch=4 if version >= 3 else -1,
        metadata="méta",
        committed_at_ms=COMMITTED_AT_MS,
        expires_at_ms=EXPIRES_AT_MS if version == 1 else None,
    )


def test_an_offset_that_names_its_topic_by_id_is_read() -> None:
    read = read_offset_value(bytes.fromhex(OFFSET_VALUE_WITH_TOPIC_ID))
    assert (read.offset, read.leader_epoch, read.metadata) == (123_456_789_012, 4, "méta")


def test_a_group_is_written_as_kafka_writes_it() -> None:
    assert group_value(group(3)).hex() == GROUP_VALUES[3]


def test_an_empty_group_is_written_as_kafka_writes_it() -> None:
    assert group_value(StoredGroup("", 0, None, None, 5, ())).hex() == EMPTY_GROUPS[3]


@pytest.mark.parametrize("version", GROUP_VALUES)
def test_groups_of_every_version_are_read(version: int) -> None:
    assert read_group_value(bytes.fromhex(GROUP_VALUES[version])) == group(version)


@pytest.mark.parametrize("version", EMPTY_GROUPS)
def test_empty_groups_are_read(version: int) -> None:
    assert read_group_value(bytes.fromhex(EMPTY_GROUPS[version])) == StoredGroup("", 0, None, None, 5, ())


def test_keys_of_other_group_protocols_are_told_by_name() -> None:
    assert read_key(bytes.fromhex("0003000167")) == UnknownKey(3)
    assert UnknownKey(3).name == "ConsumerGroupMetadata"
    assert UnknownKey(99).name == "unknown"


@pytest.mark.parametrize(
    ("read", "sample"),
    [
        *((read_key, sample) for sample in (*OFFSET_KEYS.values(), GROUP_KEY)),
        *((read_offset_value, sample) for sample in (*OFFSET_VALUES.values(), OFFSET_VALUE_WITH_TOPIC_ID)),
        *((read_group_value, sample) for sample in (*GROUP_VALUES.values(), *EMPTY_GROUPS.values())),
    ],
)
def test_a_record_that_is_cut_short_or_too_long_is_damaged(read: Callable[[bytes], object], sample: str) -> None:
    whole = bytes.fromhex(sample)
    for length in range(len(whole)):
        with pytest.raises(DamagedRecordError):
            read(whole[:length])
    with pytest.raises(DamagedRecordError):
        read(whole + b"\x00")


@given(data=st.binary(max_size=200))
def test_no_bytes_crash_the_readers(data: bytes) -> None:
    for read in (read_key, read_offset_value, read_group_value):
        try:
            found: object = read(data)
        except DamagedRecordError as error:
            found = error
        assert found is not None


@given(sample=st.sampled_from(sorted(GROUP_VALUES.values())), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_never_crashes_the_reader_of_groups(sample: str, place: int, bit: int) -> None:
    data = bytearray.fromhex(sample)
    data[place % len(data)] ^= 1 << bit
    try:
        found: object = read_group_value(bytes(data))
    except DamagedRecordError as error:
        found = error
    assert found is not None


def test_what_no_rebalance_can_have_written_is_damage() -> None:
    good = group(3)
    for broken in (
        StoredGroup("consumer", 3, None, "c-1", None, good.members),
        StoredGroup("", 3, "range", "c-1", None, good.members),
        StoredGroup("consumer", 3, "range", "c-9", None, good.members),
        StoredGroup("consumer", 3, "range", None, None, good.members),
        StoredGroup("consumer", 3, "range", "c-1", None, (member("c-1"), member("c-1"))),
        StoredGroup(
            "consumer", 3, "range", "c-1", None, (member("c-1", instance_id="i"), member("c-2", instance_id="i"))
        ),
    ):
        with pytest.raises(DamagedRecordError):
            read_group_value(group_value(broken))


TEXTS = st.text(max_size=20)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)


@given(st.builds(CommittedOffset, LONGS, INTS, TEXTS, LONGS, st.none()))
def test_every_offset_comes_back_as_it_was_written(committed: CommittedOffset) -> None:
    assert read_offset_value(offset_value(committed)) == committed


@given(TEXTS, TEXTS, INTS)
def test_every_key_comes_back_as_it_was_written(group_id: str, topic: str, partition: int) -> None:
    assert read_key(offset_key(group_id, topic, partition)) == OffsetKey(group_id, topic, partition)
    assert read_key(group_key(group_id)) == GroupKey(group_id)


def test_a_string_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        group_key("x" * 32_768)


KAFKA_READS = """
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import java.nio.ByteBuffer;
import java.util.HexFormat;

public class KafkaReads {
    public static void main(String[] arguments) {
        GroupCoordinatorRecordSerde serde = new GroupCoordinatorRecordSerde();
        for (int at = 0; at < arguments.length; at += 2) {
            CoordinatorRecord record = serde.deserialize(bytes(arguments[at]), bytes(arguments[at + 1]));
            System.out.println(record.key() + " " + record.value().message());
        }
    }

    static ByteBuffer bytes(String hex) {
        return ByteBuffer.wrap(HexFormat.of().parseHex(hex));
    }
}
"""


def test_kafkas_own_coordinator_reads_what_is_written(tmp_path: Path) -> None:
    source = tmp_path / "KafkaReads.java"
    source.write_text(KAFKA_READS)
    records = (
        offset_key("orders", "t", 7).hex(),
        offset_value(CommittedOffset(42, 4, "m", COMMITTED_AT_MS)).hex(),
        group_key("orders").hex(),
        group_value(group(3)).hex(),
    )
    command = [real_parts.java_with_compiler(), "-cp", real_parts.kafka_class_path(), str(source), *records]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    offset_line, group_line = ran.stdout.strip().splitlines()
    assert "group='orders', topic='t', partition=7" in offset_line
    assert "offset=42, leaderEpoch=4, metadata='m', commitTimestamp=1700000000000" in offset_line
    assert "generation=3, protocol='range', leader='c-1', currentStateTimestamp=1700000000123" in group_line
    assert "memberId='c-2', groupInstanceId='inst', clientId='c', clientHost='/127.0.0.1'" in group_line
