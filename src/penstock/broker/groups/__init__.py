"""Consumer groups: who is a member, who reads which partition, and how far each group has read.

Requests come in from `handlers.groups`, free of wire versions, and time comes in through the clock. Answers go out, and
records go to `__consumer_offsets`, in Kafka's formats. `GroupCoordinator` is the door; behind it, `joining` and
`membership` take the requests of members, `rebalances` moves groups through their states, `commits` keeps offsets,
`retention` ends what nobody uses any more, `journal` makes memory follow the log, and `replay` rebuilds it from there.
"""

from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.groups.descriptions import GroupDescription, MemberDescription
from penstock.broker.groups.messages import (
    CommitRequest,
    FetchedOffset,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    LeavingMember,
    LeftMember,
    MemberProtocol,
    OffsetToCommit,
    SyncAnswer,
    SyncRequest,
)
from penstock.broker.groups.offsets import TopicPartition
from penstock.broker.groups.records import CommittedOffset
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.groups.state import GroupState

__all__ = [
    "CommitRequest",
    "CommittedOffset",
    "FetchedOffset",
    "GroupCoordinator",
    "GroupDescription",
    "GroupSettings",
    "GroupState",
    "JoinAnswer",
    "JoinedMember",
    "JoinRequest",
    "LeavingMember",
    "LeftMember",
    "MemberDescription",
    "MemberProtocol",
    "OffsetToCommit",
    "SyncAnswer",
    "SyncRequest",
    "TopicPartition",
]
