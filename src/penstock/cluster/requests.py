"""Requests to one chosen broker: its view of the partitions, who is the controller, and moving partitions.

librdkafka chooses the broker itself, also one that hangs, and cannot send the last two.
"""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.alter_partition_reassignments.v0 import request as reassignment
from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse
from kio.schema.describe_quorum.v1 import request as quorum
from kio.schema.describe_quorum.v1.response import DescribeQuorumResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v9.response import MetadataResponse
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32

from penstock.errors import BrokerUnavailableError, ClusterError

TIMEOUT_S: Final = 5.0
CLIENT_ID: Final = "penstock-cluster"
METADATA_TOPIC: Final = "__cluster_metadata"
_LENGTH: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as one broker sees it."""

    topic: str
    number: int
    leader: int | None
    """None if no replica may lead it."""
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    @property
    def out_of_sync(self) -> list[int]:
        return sorted(set(self.replicas) - set(self.in_sync))


@dataclass(frozen=True, slots=True)
class Quorum:
    """The controllers, as the active one sees them."""

    controller: int
    """The active controller."""
    epoch: int
    log_end_offsets: Mapping[int, int]
    """How far each controller has copied the metadata."""


def describe_partitions(
    host: str, port: int, topics: Sequence[str] | None = None, timeout_s: float = TIMEOUT_S
) -> list[Partition]:
    """The partitions of these topics, or of all. A topic that the broker does not know has none."""
    wanted = None if topics is None else tuple(MetadataRequestTopic(name=TopicName(name)) for name in topics)
    request = MetadataRequest(
        topics=wanted,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    with Exchange(host, port, timeout_s) as exchange:
        answer = exchange.call(request, MetadataResponse)
    return [
        Partition(
            topic=str(topic.name),
            number=int(part.partition_index),
            leader=int(part.leader_id) if part.leader_id >= 0 else None,
            leader_epoch=int(part.leader_epoch),
            replicas=tuple(map(int, part.replica_nodes)),
            in_sync=tuple(sorted(map(int, part.isr_nodes))),
        )
        for topic in sorted(answer.topics, key=lambda each: str(each.name))
        for part in sorted(topic.partitions, key=lambda each: int(each.partition_index))
    ]


def describe_quorum(host: str, port: int, timeout_s: float = TIMEOUT_S) -> Quorum | None:
    """The controllers; None if the one that is asked is not active.

    The port is that of a controller, or of a broker, which passes the question on and may wait 30 s for a controller
    that hangs.
    """
    partition = quorum.PartitionData(partition_index=i32(0))
    topic = quorum.TopicData(topic_name=TopicName(METADATA_TOPIC), partitions=(partition,))
    with Exchange(host, port, timeout_s) as exchange:
        answer = exchange.call(quorum.DescribeQuorumRequest(topics=(topic,)), DescribeQuorumResponse)
    if answer.error_code is not ErrorCode.none or not answer.topics:
        return None
    (described,) = answer.topics[0].partitions
    if described.error_code is not ErrorCode.none or described.leader_id < 0:
        return None
    offsets = {int(voter.replica_id): int(voter.log_end_offset) for voter in described.current_voters}
    return Quorum(int(described.leader_id), int(described.leader_epoch), offsets)


def reassign(host: str, port: int, topic: str, replicas: Mapping[int, Sequence[int]]) -> None:
    """Begin to move partitions to other brokers; the controller finishes it once the new replicas are in sync."""
    partitions = tuple(
        reassignment.ReassignablePartition(
            partition_index=i32(partition), replicas=tuple(BrokerId(broker) for broker in brokers)
        )
        for partition, brokers in replicas.items()
    )
    moved = reassignment.ReassignableTopic(name=TopicName(topic), partitions=partitions)
    request = reassignment.AlterPartitionReassignmentsRequest(topics=(moved,))
    with Exchange(host, port, TIMEOUT_S) as exchange:
        answer = exchange.call(request, AlterPartitionReassignmentsResponse)
    refused = [part for each in answer.responses for part in each.partitions if part.error_code is not ErrorCode.none]
    if answer.error_code is not ErrorCode.none or refused:
        reason = answer.error_message or ", ".join(str(part.error_message or part.error_code.name) for part in refused)
        raise ClusterError(f"the controller refused to move partitions of {topic}: {reason}")


class Exchange:
    """A connection that sends one request of kio after the other."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            raise BrokerUnavailableError(f"the broker at {host}:{port} does not answer: {error}") from error
        self._where = f"{host}:{port}"

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, request: Any, answer_kind: Any) -> Any:
        """Send a request, and return its answer."""
        self.send(request)
        return self.receive(answer_kind)

    def send(self, request: Any) -> None:
        header = type(request).__header_schema__(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=i32(1),
            client_id=CLIENT_ID,
        )
        frame = io.BytesIO()
        entity_writer(type(header))(frame, header)
        entity_writer(type(request))(frame, request)
        try:
            self._socket.sendall(_LENGTH.pack(frame.tell()) + frame.getvalue())
        except OSError as error:
            raise BrokerUnavailableError(f"the broker at {self._where} does not answer: {error}") from error

    def receive(self, answer_kind: Any) -> Any:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        body = self._read(length)
        _, used = entity_reader(answer_kind.__header_schema__)(body, 0)
        answer, _ = entity_reader(answer_kind)(body, used)
        return answer

    def _read(self, length: int) -> bytes:
        found = bytearray()
        while len(found) < length:
            try:
                data = self._socket.recv(length - len(found))
            except OSError as error:
                raise BrokerUnavailableError(f"the broker at {self._where} does not answer: {error}") from error
            if not data:
                raise BrokerUnavailableError(f"the broker at {self._where} closed the connection")
            found += data
        return bytes(found)
