"""The records of `__consumer_offsets`, in Kafka's binary formats, so that Kafka's tools can read the topic.

Keys: OffsetCommitKey (version 1, also read as 0) and GroupMetadataKey (2). Values: OffsetCommitValue (written as 3, or
as 1 if the commit has its own expiry; read from 0 to 4) and GroupMetadataValue (written as 3, read from 0 to 4). The
version is in the first two bytes of each. A record whose value is None deletes its key.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from penstock.broker.stored_fields import DamagedRecordError, FieldReader, put_bytes, put_string

StoredRecord = tuple[bytes, bytes | None]

KEY_NAMES: Final = {
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    8: "ConsumerGroupCurrentMemberAssignment",
    10: "ShareGroupMemberMetadata",
    11: "ShareGroupMetadata",
    12: "ShareGroupTargetAssignmentMetadata",
    13: "ShareGroupTargetAssignmentMember",
    14: "ShareGroupCurrentMemberAssignment",
    15: "ShareGroupStatePartitionMetadata",
    16: "ConsumerGroupRegularExpression",
    17: "StreamsGroupMetadata",
    19: "StreamsGroupMemberMetadata",
    20: "StreamsGroupTargetAssignmentMetadata",
    21: "StreamsGroupTargetAssignmentMember",
    22: "StreamsGroupCurrentMemberAssignment",
    23: "StreamsGroupTopology",
}
"""Records of group protocols that this broker does not support, by key version."""

_FIRST_FLEXIBLE_VALUE: Final = 4
_OFFSET_HEAD: Final = struct.Struct(">hqih")
_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    group: str


@dataclass(frozen=True, slots=True)
class UnknownKey:
    version: int

    @property
    def name(self) -> str:
        return KEY_NAMES.get(self.version, "unknown")


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's position in one partition: the offset of the next record to read."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int | None = None
    """Only set if an old client asked for its own retention; it then replaces the broker's setting."""


@dataclass(frozen=True, slots=True)
class StoredMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_since_ms: int | None
    members: tuple[StoredMember, ...]


def offset_key(group: str, topic: str, partition: int) -> bytes:
    return struct.pack(">h", _OFFSET_KEY_VERSION) + put_string(group) + put_string(topic) + struct.pack(">i", partition)


def group_key(group: str) -> bytes:
    return struct.pack(">h", _GROUP_KEY_VERSION) + put_string(group)


def offset_value(committed: CommittedOffset) -> bytes:
    if committed.expires_at_ms is None:
        head = struct.pack(">hqi", 3, committed.offset, committed.leader_epoch)
        return head + put_string(committed.metadata) + struct.pack(">q", committed.committed_at_ms)
    head = struct.pack(">hq", 1, committed.offset)
    return (
        head + put_string(committed.metadata) + struct.pack(">qq", committed.committed_at_ms, committed.expires_at_ms)
    )


def group_value(group: StoredGroup) -> bytes:
    since_ms = -1 if group.state_since_ms is None else group.state_since_ms
    parts = [
        struct.pack(">h", 3),
        put_string(group.protocol_type),
        struct.pack(">i", group.generation),
        put_string(group.protocol),
        put_string(group.leader),
        struct.pack(">qi", since_ms, len(group.members)),
    ]
    for member in group.members:
        parts += (
            put_string(member.member_id),
            put_string(member.instance_id),
            put_string(member.client_id),
            put_string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            put_bytes(member.subscription),
            put_bytes(member.assignment),
        )
    return b"".join(parts)


def read_key(data: bytes) -> OffsetKey | GroupKey | UnknownKey:
    reader = FieldReader(data)
    version = reader.int16()
    key: OffsetKey | GroupKey
    if version in (0, _OFFSET_KEY_VERSION):
        key = OffsetKey(reader.string(), reader.string(), reader.int32())
    elif version == _GROUP_KEY_VERSION:
        key = GroupKey(reader.string())
    else:
        return UnknownKey(version)
    reader.end()
    return key


def read_offset_value(data: bytes) -> CommittedOffset:
    if data.startswith(b"\x00\x03") and len(data) >= _OFFSET_HEAD.size + 8:
        return _read_current_offset_value(data)
    reader = FieldReader(data)
    version = _value_version(reader)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    committed_at_ms = reader.int64()
    expires_at_ms = reader.int64() if version == 1 else -1
    reader.end_of_structure()
    reader.end()
    return CommittedOffset(
        offset, leader_epoch, metadata, committed_at_ms, expires_at_ms if expires_at_ms != -1 else None
    )


def _read_current_offset_value(data: bytes) -> CommittedOffset:
    """The version that this broker writes, decoded in one step: startup may have to read a million of them."""
    _, offset, leader_epoch, length = _OFFSET_HEAD.unpack_from(data)
    end = _OFFSET_HEAD.size + length
    if length < 0 or end + 8 != len(data):
        raise DamagedRecordError(f"its metadata of {length} bytes does not fit its {len(data)} bytes")
    try:
        metadata = data[_OFFSET_HEAD.size : end].decode()
    except UnicodeDecodeError as error:
        raise DamagedRecordError(f"its metadata is not UTF-8: {error}") from error
    return CommittedOffset(offset, leader_epoch, metadata, int.from_bytes(data[end:], "big", signed=True))


def read_group_value(data: bytes) -> StoredGroup:
    reader = FieldReader(data)
    version = _value_version(reader)
    protocol_type = reader.string()
    generation = reader.int32()
    protocol = reader.nullable_string()
    leader = reader.nullable_string()
    since_ms = reader.int64() if version >= 2 else -1
    members = tuple(_read_member(reader, version) for _ in range(reader.array_length()))
    reader.end_of_structure()
    reader.end()
    stored = StoredGroup(protocol_type, generation, protocol, leader, since_ms if since_ms != -1 else None, members)
    _check(stored)
    return stored


def _read_member(reader: FieldReader, version: int) -> StoredMember:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription = reader.byte_string()
    assignment = reader.byte_string()
    reader.end_of_structure()
    return StoredMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def _value_version(reader: FieldReader) -> int:
    version = reader.int16()
    if not 0 <= version <= _FIRST_FLEXIBLE_VALUE:
        raise DamagedRecordError(f"its value has version {version}, which this broker does not support")
    reader.flexible = version >= _FIRST_FLEXIBLE_VALUE
    return version


def _check(group: StoredGroup) -> None:
    """A state that no rebalance can have written is damage, even if the bytes can be read."""
    if not group.members:
        return
    if group.protocol is None or not group.protocol_type:
        raise DamagedRecordError("it has members but no protocol")
    ids = {member.member_id for member in group.members}
    static = [member.instance_id for member in group.members if member.instance_id is not None]
    if len(ids) != len(group.members) or len(set(static)) != len(static):
        raise DamagedRecordError("it has a member twice")
    if group.leader not in ids:
        raise DamagedRecordError(f"its leader {group.leader} is not one of its members")
