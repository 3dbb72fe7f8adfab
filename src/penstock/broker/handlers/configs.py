"""Settings of topics and of the broker: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError, code_of
from penstock.broker.request import Fields, Handler, Request
from penstock.broker.settings import describe_broker
from penstock.errors import PenstockError, UnknownTopicError
from penstock.log.config import TOPIC_SETTINGS, TopicConfig
from penstock.log.described import ConfigRow, Origin, Source, describe_topic, value_of
from penstock.log.settings import Kind, find
from penstock.log.store import Topic, check_topic_name

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class Resource(IntEnum):
    """What settings belong to, by the protocol's number."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """What IncrementalAlterConfigs does with a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_WITHOUT_SETTINGS: Final = {
    Resource.BROKER_LOGGER: "the level of the broker's log is given when it starts, not while it runs",
    Resource.CLIENT_METRICS: "penstock's log does not collect the metrics of its clients",
    Resource.GROUP: "groups have no settings of their own here; those of the broker apply to all",
}

Change = Callable[[Topic], dict[str, str]]
"""Makes a topic's new settings out of those it has."""


def describe_configs(broker: Broker, request: Request) -> Fields:
    return {"results": [_describe(broker, request, resource) for resource in request.body.resources]}


def _describe(broker: Broker, request: Request, resource: Any) -> Fields:
    code, message = ErrorCode.none, None
    rows: list[ConfigRow] = []
    try:
        rows = _rows(broker, resource)
    except PenstockError as error:
        code, message = code_of(error), str(error)
    # Null and an empty list both mean all of them.
    keys = set(resource.configuration_keys or ())
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [_as_fields(row, request) for row in rows if not keys or row.name in keys],
    }


def _rows(broker: Broker, resource: Any) -> list[ConfigRow]:
    kind = _kind(resource.resource_type)
    if kind is Resource.TOPIC:
        topic = _topic(broker, resource.resource_name)
        return describe_topic(topic.overrides, broker.settings.overrides)
    # The empty name stands for the settings that all brokers share and that were changed while they ran: none.
    _check_broker_name(broker, resource.resource_name)
    if not resource.resource_name:
        return []
    return sorted([*describe_broker(broker.settings.overrides), *_identity(broker)], key=lambda row: row.name)


def _identity(broker: Broker) -> Iterable[ConfigRow]:
    """What the broker was told about itself in other ways than by settings."""
    for name, value, kind, documentation in (
        ("broker.id", str(broker.node.node_id), Kind.INT, "The id of this broker."),
        ("log.dirs", str(broker.data_folder.absolute()), Kind.LIST, "The data folder."),
        ("node.id", str(broker.node.node_id), Kind.INT, "The id of this broker."),
    ):
        yield ConfigRow(name, value, kind, documentation, True, (Origin(name, value, Source.BROKER),))


def _as_fields(row: ConfigRow, request: Request) -> Fields:
    synonyms = row.origins if request.body.include_synonyms else ()
    return {
        "name": row.name,
        "value": row.value,
        "read_only": row.read_only,
        "config_source": row.source.value,
        "is_sensitive": False,
        "synonyms": [
            {"name": origin.name, "value": origin.value, "source": origin.source.value} for origin in synonyms
        ],
        "config_type": row.kind.value,
        "documentation": row.documentation if request.get("include_documentation", False) else None,
    }


def alter_configs(broker: Broker, request: Request) -> Fields:
    """Each topic gets exactly the settings that are given; what is not given goes back to the default."""

    def change_of(configs: Iterable[Any]) -> Change:
        return lambda topic: {config.name: _given(config) for config in configs}

    return _alter(broker, request, change_of)


def incremental_alter_configs(broker: Broker, request: Request) -> Fields:
    def change_of(configs: Iterable[Any]) -> Change:
        def change(topic: Topic) -> dict[str, str]:
            overrides = dict(topic.overrides)
            for config in configs:
                _apply(overrides, config, broker.settings.overrides)
            return overrides

        return change

    return _alter(broker, request, change_of)


def _alter(broker: Broker, request: Request, change_of: Callable[[Iterable[Any]], Change]) -> Fields:
    times = Counter((each.resource_type, each.resource_name) for each in request.body.resources)
    answers = []
    for resource in request.body.resources:
        code, message = ErrorCode.none, None
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise ProtocolError(
                    ErrorCode.invalid_request, f"{resource.resource_name!r} is named twice; name it once"
                )
            _alter_one(broker, resource, change_of(resource.configs), validate_only=request.body.validate_only)
        except PenstockError as error:
            code, message = code_of(error), str(error)
        answers.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
    return {"responses": answers}


def _alter_one(broker: Broker, resource: Any, change: Change, *, validate_only: bool) -> None:
    if _kind(resource.resource_type) is Resource.BROKER:
        _check_broker_name(broker, resource.resource_name)
        if resource.configs:
            names = ", ".join(sorted(config.name for config in resource.configs))
            raise ProtocolError(
                ErrorCode.invalid_request,
                f"{names}: the broker's settings do not change while it runs; "
                "start it with penstock serve --config name=value",
            )
        return
    if max(Counter(config.name for config in resource.configs).values(), default=0) > 1:
        raise ProtocolError(ErrorCode.invalid_request, "a setting is named twice; name it once")
    topic = _topic(broker, resource.resource_name)
    overrides = change(topic)
    config = TopicConfig.parse(overrides, broker.settings.overrides)
    if topic.internal:
        _check_internal(topic, config)
    if not validate_only and overrides != topic.overrides:
        broker.topics.set_overrides(topic.name, overrides)


def _check_internal(topic: Topic, config: TopicConfig) -> None:
    """Refuse what would make the coordinators lose or no longer write their state."""
    if config.cleanup_policy != {"compact"}:
        raise ProtocolError(
            ErrorCode.invalid_config,
            f"{topic.name} is the broker's own topic and must stay compacted: leave cleanup.policy at 'compact'",
        )
    if config.min_insync_replicas > 1:
        raise ProtocolError(
            ErrorCode.invalid_config,
            f"{topic.name} is the broker's own topic, and there is one replica: leave min.insync.replicas at 1",
        )


def _apply(overrides: dict[str, str], config: Any, broker_defaults: Mapping[str, str]) -> None:
    """Do to a topic's settings what one entry of an incremental change asks for."""
    try:
        operation = Operation(config.config_operation)
    except ValueError:
        raise ProtocolError(
            ErrorCode.invalid_request,
            f"{config.name}: operation {config.config_operation} is unknown; use 0 set, 1 delete, 2 append, 3 subtract",
        ) from None
    if operation is Operation.DELETE:
        overrides.pop(config.name, None)
        return
    value = _given(config)
    if operation is Operation.SET:
        overrides[config.name] = value
        return
    setting = find(config.name, TOPIC_SETTINGS, "topic")
    if setting.kind is not Kind.LIST:
        raise ProtocolError(
            ErrorCode.invalid_config, f"{config.name} is no list, so nothing can be added to it or taken away: set it"
        )
    items = _items(value_of(setting, overrides, broker_defaults))
    if operation is Operation.APPEND:
        items += [item for item in _items(value) if item not in items]
    else:
        items = [item for item in items if item not in _items(value)]
    overrides[config.name] = ",".join(items)


def _given(config: Any) -> str:
    if config.value is None:
        raise ProtocolError(
            ErrorCode.invalid_request, f"{config.name} is null; give it a value, or delete it to have the default"
        )
    return str(config.value)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _kind(number: int) -> Resource:
    """TOPIC or BROKER; ProtocolError for what has no settings here."""
    try:
        kind = Resource(number)
    except ValueError:
        raise ProtocolError(
            ErrorCode.invalid_request, f"resource type {number} is unknown; use {Resource.TOPIC} or {Resource.BROKER}"
        ) from None
    if kind in _WITHOUT_SETTINGS:
        raise ProtocolError(ErrorCode.invalid_request, _WITHOUT_SETTINGS[kind])
    return kind


def _topic(broker: Broker, name: str) -> Topic:
    topic = broker.topics.get(name)
    if topic is None:
        check_topic_name(name)
        raise UnknownTopicError(f"there is no topic {name!r}; create it first, or look for a typo")
    return topic


def _check_broker_name(broker: Broker, name: str) -> None:
    if name not in ("", str(broker.node.node_id)):
        raise ProtocolError(
            ErrorCode.invalid_request,
            f"there is no broker {name!r}; this is broker {broker.node.node_id}, the only one",
        )


def list_config_resources(broker: Broker, request: Request) -> Fields:
    """What has settings. Version 0 asks for subscriptions to client metrics only, and there are none."""
    if request.version == 0:
        return {"error_code": ErrorCode.none, "config_resources": []}
    asked = set(request.body.resource_types)
    if asked - set(Resource):
        return {"error_code": ErrorCode.unsupported_version, "config_resources": []}
    resources: list[Fields] = []
    if not asked or Resource.BROKER in asked:
        resources.append({"resource_name": str(broker.node.node_id), "resource_type": Resource.BROKER.value})
    if not asked or Resource.TOPIC in asked:
        resources += [{"resource_name": name, "resource_type": Resource.TOPIC.value} for name in broker.topics.names()]
    return {"error_code": ErrorCode.none, "config_resources": resources}


HANDLERS: Final[dict[int, Handler]] = {
    32: describe_configs,
    33: alter_configs,
    44: incremental_alter_configs,
    74: list_config_resources,
}
VERSIONS: Final = {32: (1, 4), 33: (0, 2), 44: (0, 1), 74: (0, 1)}
