"""A member of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from penstock.broker.groups.countdown import Countdown
from penstock.broker.groups.messages import JoinAnswer, MemberProtocol, SyncAnswer


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    session: Countdown
    assignment: bytes = b""
    is_new: bool = False
    """Until its first JoinGroup is answered. It cannot heartbeat before, so another timeout watches over it."""
    join: asyncio.Future[JoinAnswer] | None = None
    """The JoinGroup of this member that waits for the others."""
    sync: asyncio.Future[SyncAnswer] | None = None
    """The SyncGroup of this member that waits for the leader's assignment."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def waits_for_the_group(self) -> bool:
        """Whether it is the group's turn to answer, so that no heartbeat is due."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(protocol.name for protocol in self.protocols)

    def metadata_for(self, protocol_name: str) -> bytes:
        return next(protocol.metadata for protocol in self.protocols if protocol.name == protocol_name)

    def vote(self, candidates: Collection[str]) -> str:
        """The candidate that it likes best."""
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)

    def answer_join(self, answer: JoinAnswer) -> None:
        """Answer the JoinGroup that waits, if one does. Its client may have gone away in this very moment."""
        if self.join is not None and not self.join.done():
            self.join.set_result(answer)
        self.join = None

    def answer_sync(self, answer: SyncAnswer) -> bool:
        """Answer the SyncGroup that waits, if one does, and say whether one did."""
        waited = self.sync is not None
        if self.sync is not None and not self.sync.done():
            self.sync.set_result(answer)
        self.sync = None
        return waited
