"""Configs of topics, groups and the broker: describe, alter and list them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from penstock.broker.dynamic_configs import CLUSTER
from penstock.broker.errors import ProtocolError, reported
from penstock.broker.handlers.topic_checks import existing_topic
from penstock.broker.request import Apis, Fields, Request, Steps
from penstock.broker.settings import BROKER_SETTINGS, describe_broker, describe_set
from penstock.errors import ConfigError
from penstock.log.configs.described import ConfigRow, ConfigSource, Origin, describe_topic, documentation, value_of
from penstock.log.configs.setting import Kind, Setting, find, table
from penstock.log.configs.topic_config import TOPIC_SETTINGS, TopicConfig
from penstock.log.store import Topic

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class Resource(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_WITHOUT_SETTINGS: Final = {
    Resource.BROKER_LOGGER: "the log level of the broker is set when it starts",
    Resource.CLIENT_METRICS: "penstock's log does not collect the metrics of its clients",
}

_CLASSIC_GROUPS: Final = (
    "groups use the classic protocol here, in which each consumer brings its own session.timeout.ms and "
    "heartbeat.interval.ms"
)
_GROUP_SETTINGS: Final = table(
    Setting(name, kind, default, effect, minimum=minimum, choices=choices, fixed_because=_CLASSIC_GROUPS)
    for name, kind, default, effect, minimum, choices in (
        ("consumer.assignment.interval.ms", Kind.INT, 1_000, "the pace of assignments", 0, ()),
        ("consumer.heartbeat.interval.ms", Kind.INT, 5_000, "how often members report", 1, ()),
        ("consumer.session.timeout.ms", Kind.INT, 45_000, "after how long a silent member is gone", 1, ()),
        ("share.assignment.interval.ms", Kind.INT, 1_000, "the pace of assignments", 0, ()),
        ("share.auto.offset.reset", Kind.STRING, "latest", "where a new share group begins", None, ()),
        ("share.delivery.count.limit", Kind.INT, 5, "how often a record is delivered at most", 2, ()),
        ("share.heartbeat.interval.ms", Kind.INT, 5_000, "how often members report", 1, ()),
        (
            "share.isolation.level",
            Kind.STRING,
            "read_uncommitted",
            "whether aborted records are delivered",
            None,
            ("read_committed", "read_uncommitted"),
        ),
        ("share.partition.max.record.locks", Kind.INT, 2_000, "how many records are out at a time", 100, ()),
        ("share.record.lock.duration.ms", Kind.INT, 30_000, "how long a record is out", 1_000, ()),
        ("share.renew.acknowledge.enable", Kind.BOOLEAN, True, "whether that can be prolonged", None, ()),
        ("share.session.timeout.ms", Kind.INT, 45_000, "after how long a silent member is gone", 1, ()),
        ("streams.assignment.interval.ms", Kind.INT, 1_000, "the pace of assignments", 0, ()),
        ("streams.heartbeat.interval.ms", Kind.INT, 5_000, "how often members report", 1, ()),
        ("streams.initial.rebalance.delay.ms", Kind.INT, 3_000, "how long the first assignment waits", 0, ()),
        ("streams.num.standby.replicas", Kind.INT, 0, "the standby copies of each task", 0, ()),
        ("streams.session.timeout.ms", Kind.INT, 45_000, "after how long a silent member is gone", 1, ()),
    )
)
"""Kafka's group configs for protocols that this broker does not offer, with Kafka's defaults."""

Change = Callable[[Mapping[str, str]], dict[str, str]]
"""Computes new settings from those of a topic or a layer of the broker."""


def describe_configs(broker: Broker, request: Request) -> Steps[Fields]:
    results = []
    for resource in dict.fromkeys(request.body.resources):
        results.append(_describe(broker, request, resource))
        yield
    return {"results": results}


def _describe(broker: Broker, request: Request, resource: Any) -> Fields:
    rows: list[ConfigRow] = []
    with reported() as outcome:
        rows = _rows(broker, resource)
    # Null and an empty list both mean all.
    keys = set(resource.configuration_keys or ())
    return {
        **outcome,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [_as_fields(row, request) for row in rows if not keys or row.name in keys],
    }


def _rows(broker: Broker, resource: Any) -> list[ConfigRow]:
    kind, name = _kind(resource.resource_type), resource.resource_name
    if kind is Resource.TOPIC:
        return describe_topic(existing_topic(broker.topics, name).overrides, broker.configs.layers())
    if kind is Resource.GROUP:
        _check_group_name(name)
        return [_as_row(setting) for setting in _GROUP_SETTINGS.values()]
    _check_broker_name(broker, name)
    if name == CLUSTER:
        return describe_set(ConfigSource.DYNAMIC_DEFAULT, broker.configs.layer(CLUSTER))
    rows = {row.name: row for row in (*describe_broker(broker.configs.layers()), *_identity(broker))}
    return [rows[name] for name in sorted(rows)]


def _identity(broker: Broker) -> Iterable[ConfigRow]:
    """The broker's own settings, however they were set."""
    node = broker.node
    for name, value, kind, text in (
        (
            "advertised.listeners",
            f"PLAINTEXT://{node.host}:{node.port}",
            Kind.LIST,
            documentation(BROKER_SETTINGS["advertised.listeners"]),
        ),
        ("broker.id", str(node.node_id), Kind.INT, "The id of this broker."),
        ("log.dirs", str(broker.data_folder.absolute()), Kind.LIST, "The data folder."),
        ("node.id", str(node.node_id), Kind.INT, documentation(BROKER_SETTINGS["node.id"])),
    ):
        yield ConfigRow(name, value, kind, text, True, (Origin(name, value, ConfigSource.BROKER),))


def _as_row(setting: Setting) -> ConfigRow:
    value = setting.format(setting.default)
    origin = Origin(f"group.{setting.name}", value, ConfigSource.DEFAULT)
    return ConfigRow(setting.name, value, setting.kind, documentation(setting), True, (origin,))


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


def alter_configs(broker: Broker, request: Request) -> Steps[Fields]:
    """Each resource gets exactly the given settings; all others return to their defaults."""

    def change(configs: Iterable[Any], table: Mapping[str, Setting], current: Mapping[str, str]) -> dict[str, str]:
        return {config.name: _given(config) for config in configs}

    return _alter(broker, request, change)


def incremental_alter_configs(broker: Broker, request: Request) -> Steps[Fields]:
    def change(configs: Iterable[Any], table: Mapping[str, Setting], current: Mapping[str, str]) -> dict[str, str]:
        overrides = dict(current)
        for config in configs:
            _apply(overrides, config, table, broker.settings.overrides)
        return overrides

    return _alter(broker, request, change)


def _alter(broker: Broker, request: Request, change: Callable[..., dict[str, str]]) -> Steps[Fields]:
    times = Counter((each.resource_type, each.resource_name) for each in request.body.resources)
    answers = []
    for resource in request.body.resources:
        with reported() as outcome:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise ProtocolError(
                    ErrorCode.invalid_request, f"{resource.resource_name!r} is named twice; name it once"
                )
            if max(Counter(config.name for config in resource.configs).values(), default=0) > 1:
                raise ProtocolError(ErrorCode.invalid_request, "a setting is named twice; name it once")
            kind = _kind(resource.resource_type)
            table = BROKER_SETTINGS if kind is Resource.BROKER else TOPIC_SETTINGS
            _ALTER[kind](broker, resource, partial(change, resource.configs, table), request.body.validate_only)
        answers.append({**outcome, "resource_type": resource.resource_type, "resource_name": resource.resource_name})
        yield
    return {"responses": answers}


def _alter_topic(broker: Broker, resource: Any, change: Change, validate_only: bool) -> None:
    topic = existing_topic(broker.topics, resource.resource_name)
    overrides = change(topic.overrides)
    config = TopicConfig.parse(overrides, broker.settings.overrides)
    if topic.internal:
        _check_internal(topic, config)
    if not validate_only and overrides != topic.overrides:
        broker.topics.set_overrides(topic.name, overrides)


def _alter_broker(broker: Broker, resource: Any, change: Change, validate_only: bool) -> None:
    name = resource.resource_name
    _check_broker_name(broker, name)
    overrides = change(broker.configs.layer(name))
    try:
        broker.change_configs(name, overrides, validate_only=validate_only)
    except ConfigError as error:
        # Kafka's code for a broker; for a topic it is INVALID_CONFIG.
        raise ProtocolError(ErrorCode.invalid_request, str(error)) from error


def _alter_group(broker: Broker, resource: Any, change: Change, validate_only: bool) -> None:
    _check_group_name(resource.resource_name)
    for config in resource.configs:
        setting = find(config.name, _GROUP_SETTINGS, "group")
        raise ConfigError(f"{setting.name} cannot be set: {setting.fixed_because}. Set those at the consumer.")


_ALTER: Final[dict[Resource, Callable[[Broker, Any, Change, bool], None]]] = {
    Resource.TOPIC: _alter_topic,
    Resource.BROKER: _alter_broker,
    Resource.GROUP: _alter_group,
}


def _check_internal(topic: Topic, config: TopicConfig) -> None:
    """Refuse changes that would make the coordinators lose their state or stop writing it."""
    if config.cleanup_policy != {"compact"}:
        raise ProtocolError(
            ErrorCode.invalid_config,
            f"{topic.name} is the broker's own topic and must stay compacted: leave cleanup.policy at 'compact'",
        )


def _apply(
    overrides: dict[str, str], config: Any, settings: Mapping[str, Setting], broker_defaults: Mapping[str, str]
) -> None:
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
    of_topic = settings is TOPIC_SETTINGS
    setting = find(config.name, settings, "topic" if of_topic else "broker")
    if setting.kind is not Kind.LIST:
        raise ProtocolError(
            ErrorCode.invalid_config, f"{config.name} is not a list, so append and subtract do not apply: set it"
        )
    present = overrides if of_topic else {**broker_defaults, **overrides}
    items = _items(value_of(setting, present, broker_defaults))
    if operation is Operation.APPEND:
        items += [item for item in _items(value) if item not in items]
    else:
        items = [item for item in items if item not in _items(value)]
    overrides[config.name] = ",".join(items)


def _given(config: Any) -> str:
    if config.value is None:
        raise ProtocolError(
            ErrorCode.invalid_request, f"{config.name} is null; give it a value, or delete it to restore the default"
        )
    return str(config.value)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _kind(number: int) -> Resource:
    """TOPIC, BROKER or GROUP. Raises ProtocolError for resources without settings here."""
    try:
        kind = Resource(number)
    except ValueError:
        raise ProtocolError(
            ErrorCode.invalid_request, f"resource type {number} is unknown; use 2 (topic), 4 (broker) or 32 (group)"
        ) from None
    if kind in _WITHOUT_SETTINGS:
        raise ProtocolError(ErrorCode.invalid_request, _WITHOUT_SETTINGS[kind])
    return kind


def _check_broker_name(broker: Broker, name: str) -> None:
    if name not in (CLUSTER, str(broker.node.node_id)):
        raise ProtocolError(
            ErrorCode.invalid_request,
            f"there is no broker {name!r}; this is broker {broker.node.node_id}, the only one",
        )


def _check_group_name(name: str) -> None:
    if not name:
        raise ProtocolError(ErrorCode.invalid_request, "a group has no empty name; say which group is meant")


def list_config_resources(broker: Broker, request: Request) -> Fields:
    """The resources that have configs. Version 0 asks only for client metrics, of which there are none."""
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


APIS: Final[Apis] = {
    32: (describe_configs, 1, 4),
    33: (alter_configs, 0, 2),
    44: (incremental_alter_configs, 0, 1),
    74: (list_config_resources, 0, 1),
}
