"""Requests of group members, and of operators about groups.

Versions: FindCoordinator 0-6, JoinGroup 0-9, Heartbeat 0-4, LeaveGroup 0-5, SyncGroup 0-5, DescribeGroups 0-6,
ListGroups 0-5, DeleteGroups 0-2; those about offsets are in `group_offsets`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.groups.group import Group, GroupState
from penstock.broker.groups.messages import JoinRequest, LeavingMember, MemberProtocol, SyncRequest
from penstock.broker.request import Apis, Fields, Request, Steps

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_CLASSIC: Final = "classic"
_EVERY_OPERATION: Final = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS: all operations on a group. There is no access control, so
every client has them."""


def find_coordinator(broker: Broker, request: Request) -> Fields:
    """This node coordinates every group and transaction; other key types are unknown here."""
    known = request.get("key_type", _GROUP_KEY) in (_GROUP_KEY, _TRANSACTION_KEY)
    place: dict[str, Any]
    if known:
        node = broker.node
        place = {"error_code": ErrorCode.none, "node_id": node.node_id, "host": node.host, "port": node.port}
    else:
        place = {"error_code": ErrorCode.invalid_request, "node_id": -1, "host": "", "port": -1}
    place["error_message"] = None if known else "only groups and transactional ids have a coordinator here"
    return {**place, "coordinators": [{"key": key, **place} for key in request.get("coordinator_keys", ())]}


async def join_group(broker: Broker, request: Request) -> Fields:
    body = request.body
    session_timeout_ms = _ms(body.session_timeout)
    answer = await broker.groups.join(
        JoinRequest(
            group_id=body.group_id,
            member_id=body.member_id,
            protocol_type=body.protocol_type,
            protocols=tuple(MemberProtocol(protocol.name, protocol.metadata) for protocol in body.protocols),
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=_ms(request.get("rebalance_timeout", body.session_timeout)),
            instance_id=request.get("group_instance_id"),
            client_id=request.client_id or "",
            client_host=f"/{request.client_host}",
            requires_known_member_id=request.version >= 4,
            can_skip_assignment=request.version >= 9,
            reason=request.get("reason") or "",
        )
    )
    no_name = None if request.version >= 7 else ""
    return {
        "error_code": answer.error,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": no_name if answer.protocol_name is None else answer.protocol_name,
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": member.metadata}
            for member in answer.members
        ],
    }


async def sync_group(broker: Broker, request: Request) -> Fields:
    body = request.body
    if request.version >= 5 and (body.protocol_type is None or body.protocol_name is None):
        return {"error_code": ErrorCode.inconsistent_group_protocol, "assignment": b""}
    answer = await broker.groups.sync(
        SyncRequest(
            group_id=body.group_id,
            member_id=body.member_id,
            generation=body.generation_id,
            instance_id=request.get("group_instance_id"),
            protocol_type=request.get("protocol_type"),
            protocol_name=request.get("protocol_name"),
            assignments={each.member_id: each.assignment for each in body.assignments},
        )
    )
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }


def heartbeat(broker: Broker, request: Request) -> Fields:
    body = request.body
    try:
        broker.groups.heartbeat(body.group_id, body.member_id, body.generation_id, request.get("group_instance_id"))
    except ProtocolError as error:
        return {"error_code": error.code}
    return {"error_code": ErrorCode.none}


async def leave_group(broker: Broker, request: Request) -> Fields:
    """Up to version 2, one member leaves, and the response's error is its own."""
    body = request.body
    alone = request.version < 3
    leaving = (
        [LeavingMember(body.member_id)]
        if alone
        else [
            LeavingMember(each.member_id, each.group_instance_id, getattr(each, "reason", None) or "")
            for each in body.members
        ]
    )
    try:
        left = await broker.groups.leave(body.group_id, leaving)
    except ProtocolError as error:
        return {"error_code": error.code, "members": []}
    return {
        "error_code": left[0].error if alone else ErrorCode.none,
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.instance_id, "error_code": each.error}
            for each in left
        ],
    }


def describe_groups(broker: Broker, request: Request) -> Steps[Fields]:
    rights = {"authorized_operations": _EVERY_OPERATION} if request.get("include_authorized_operations", False) else {}
    answers = []
    for group_id in dict.fromkeys(request.body.groups):
        yield
        description = broker.groups.describe(group_id)
        if description is None:
            answers.append(_missing_group(group_id, request.version, rights))
        else:
            answers.append({**_described(description), **rights})
    return {"groups": answers}


def list_groups(broker: Broker, request: Request) -> Fields:
    states = {state.strip().lower() for state in request.get("states_filter", ())}
    types = {kind.strip().lower() for kind in request.get("types_filter", ())}
    groups = broker.groups.list() if not types or _CLASSIC in types else ()
    return {
        "error_code": ErrorCode.none,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state.value,
                "group_type": _CLASSIC,
            }
            for group in groups
            if not states or group.state.value.lower() in states
        ],
    }


async def delete_groups(broker: Broker, request: Request) -> Fields:
    names = list(dict.fromkeys(request.body.groups_names))
    try:
        answers = await broker.groups.delete_groups(names)
    except ProtocolError as error:
        answers = dict.fromkeys(names, error.code)
    return {"results": [{"group_id": group_id, "error_code": error} for group_id, error in answers.items()]}


def _described(group: Group) -> dict[str, Any]:
    """The protocol, and what members say about it, are only told of a stable group."""
    protocol = group.protocol_name if group.state is GroupState.STABLE else None
    return {
        "error_code": ErrorCode.none,
        "group_id": group.group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": protocol or "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": b"" if protocol is None else member.metadata_for(protocol),
                "member_assignment": member.assignment,
            }
            for member in group.members.values()
        ],
    }


def _missing_group(group_id: str, version: int, rights: dict[str, int]) -> dict[str, Any]:
    """A missing group is Dead; from version 6 on it is also an error."""
    missing = version >= 6
    return {
        "error_code": ErrorCode.group_id_not_found if missing else ErrorCode.none,
        "error_message": f"Group {group_id} not found." if missing else None,
        "group_id": group_id,
        "group_state": GroupState.DEAD.value,
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        **({} if missing else rights),
    }


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


APIS: Final[Apis] = {
    10: (find_coordinator, 0, 6),
    11: (join_group, 0, 9),
    12: (heartbeat, 0, 4),
    13: (leave_group, 0, 5),
    14: (sync_group, 0, 5),
    15: (describe_groups, 0, 6),
    16: (list_groups, 0, 5),
    42: (delete_groups, 0, 2),
}
