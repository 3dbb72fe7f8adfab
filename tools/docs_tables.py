"""Tables of settings in the documentation, made from the code when the pages are built, so that they cannot go stale.

A line `<!-- table: penstock.log.configs.topic_config:TOPIC_SETTINGS -->` in a page becomes the table of that name:
rows of Setting, APIs with their versions, a dataclass whose fields carry docstrings, the features of systems, a command
with its options, or the metrics that a collector, a registry or a list of definitions gives. It is one file, as mkdocs
loads it by its path.
mkdocs calls `on_page_markdown` (see `hooks:` in mkdocs.yml); a name that is not there stops the build.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, cast

import typer
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from penstock.abc import Feature, Features
from penstock.broker.metrics import BrokerCollector
from penstock.broker.wire.schema import api_name
from penstock.log.configs.setting import Setting
from penstock.observe.metrics.definition import Definition
from penstock.observe.metrics.library import LIBRARY
from penstock.observe.metrics.stream import STREAM
from penstock.spark.run.progress import REGISTRY

PLACE: Final = re.compile(r"^<!-- table: (?P<module>[\w.]+):(?P<name>\w+) -->$", re.MULTILINE)
MOST_LONG: Final = 2**63 - 1


def on_page_markdown(markdown: str, **_: object) -> str:
    return PLACE.sub(lambda place: table_of(place["module"], place["name"]), markdown)


def table_of(module: str, name: str) -> str:
    what = getattr(importlib.import_module(module), name)
    if (metrics := metrics_of(what)) is not None:
        return metrics_table(metrics)
    if isinstance(what, Mapping) and all(isinstance(row, Setting) for row in what.values()):
        return settings_table(what.values())
    if isinstance(what, Mapping) and all(isinstance(row, frozenset) for row in what.values()):
        return features_table(what)
    if isinstance(what, Mapping):
        return versions_table(what)
    if inspect.isclass(what) and dataclasses.is_dataclass(what):
        return fields_table(what)
    if inspect.isfunction(what):
        return options_table(what)
    raise TypeError(f"{module}:{name} is no table of settings, no dataclass and no command: no table can be made of it")


def features_table(systems: Mapping[str, Features]) -> str:
    """A column for each system, a row for each feature that one of them has."""
    found = [feature for feature in Feature if any(feature in features for features in systems.values())]
    rows = [
        (
            feature.name.lower().replace("_", " "),
            *("yes" if feature in features else "" for features in systems.values()),
        )
        for feature in found
    ]
    return markdown_table(("", *(f"`{name}`" for name in systems)), rows)


def settings_table(settings: Iterable[Setting]) -> str:
    """Every setting that is obeyed; those that have no effect or are fixed follow below, each with its reason.

    A star marks those that can be changed while a broker runs.
    """
    shown = [setting for setting in settings if not setting.hidden]
    idle = [setting for setting in shown if setting.no_effect_because]
    fixed = [setting for setting in shown if setting.fixed_because]
    text = markdown_table(
        ("name", "default", "values", "what it sets"),
        [(name_of(each), default_of(each), each.allowed, each.effect) for each in shown if each.obeyed],
    )
    if idle:
        text += "\n\nThese are accepted, kept and shown, and have no effect.\n\n" + markdown_table(
            ("name", "default", "values", "has no effect because"),
            [(name_of(each), default_of(each), each.allowed, each.no_effect_because) for each in idle],
        )
    if fixed:
        text += "\n\nThese are known, and have one value; any other is refused with the reason.\n\n" + markdown_table(
            ("name", "value", "because"), [(f"`{each.name}`", default_of(each), each.fixed_because) for each in fixed]
        )
    return text


def name_of(setting: Setting) -> str:
    return f"`{setting.name}`" + (" \\*" if setting.dynamic else "")


def default_of(setting: Setting) -> str:
    if setting.default in (MOST_LONG, sys.float_info.max):
        return "no limit"
    return f"`{setting.format(setting.default)}`" if setting.format(setting.default) else "not set"


def versions_table(versions: Mapping[int, tuple[int, int]]) -> str:
    rows = []
    for key, (low, high) in sorted(versions.items()):
        name = "".join(word.capitalize() for word in api_name(key).split("_"))
        rows.append((name, str(key), str(low) if low == high else f"{low} to {high}"))
    return markdown_table(("API", "key", "versions"), rows)


def fields_table(kind: type[Any]) -> str:
    """The fields that a dataclass declares itself: those of its bases have a table of their own."""
    texts = field_docstrings(kind)
    fields = [field for field in dataclasses.fields(kind) if field.name in kind.__annotations__]
    missing = [field.name for field in fields if field.name not in texts]
    if missing:
        raise TypeError(f"{kind.__name__} has fields without a docstring, which a reader needs: {missing}")
    return markdown_table(
        ("setting", "default", "what it sets"),
        [(f"`{field.name}`", f"`{field_default(field)}`", texts[field.name]) for field in fields],
    )


def metrics_table(metrics: Iterable[DocumentedMetric]) -> str:
    return markdown_table(
        ("metric", "kind", "labels", "what it tells, and what to do"),
        [
            (f"`{each.shown}`", each.kind, ", ".join(f"`{label}`" for label in each.labels), each.documentation)
            for each in metrics
        ],
    )


def field_default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def options_table(command: Callable[..., Any]) -> str:
    app = typer.Typer(add_completion=False)
    app.command()(command)
    rows = []
    for option in typer.main.get_command(app).params:
        text = getattr(option, "help", None)
        if not text:
            raise TypeError(f"{command.__name__} has an option without help, which a reader needs: {option.name}")
        default = option.default
        shown = getattr(default, "value", default)
        rows.append((f"`{option.opts[0]}`", "" if shown in (None, "", []) else f"`{shown}`", text))
    return markdown_table(("option", "default", "what it does"), rows)


def field_docstrings(kind: type[Any]) -> dict[str, str]:
    """The string that stands behind each field of a class, as one line."""
    (definition,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            assert isinstance(text.value, ast.Constant), f"a stray expression follows {field.target.id}"
            texts[field.target.id] = " ".join(str(text.value.value).split())
    return texts


def markdown_table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


@dataclass(frozen=True, slots=True)
class DocumentedMetric:
    """A metric as a reader looks it up."""

    name: str
    """Without `_total` and the other endings."""
    kind: str
    labels: tuple[str, ...]
    documentation: str

    @property
    def shown(self) -> str:
        """As a query names it; of a histogram, what its series have in common."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def exported(self) -> tuple[str, ...]:
        """All names that a query may use."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{ending}" for ending in ("bucket", "count", "sum"))
        return (self.shown,)


def metrics_of(what: object) -> list[DocumentedMetric] | None:
    """What stands under a name, if it is metrics: definitions, a registry, or the broker's collector. Else None."""
    if isinstance(what, tuple) and what and all(isinstance(each, Definition) for each in what):
        return [DocumentedMetric(each.name, each.kind.value, each.labels, each.documentation) for each in what]
    if isinstance(what, CollectorRegistry):
        return [_documented(family, _labels(what, family)) for family in what.collect()]
    if what is BrokerCollector:
        collector = BrokerCollector(cast(Any, _idle_broker()))
        return [_documented(family, tuple(cast(Any, family)._labelnames)) for family in collector.collect()]
    return None


def every_metric() -> list[DocumentedMetric]:
    """Of the library, of a whole stream, of the broker, of pipelines."""
    return [
        metric
        for source in (LIBRARY, STREAM, BrokerCollector, REGISTRY)
        for metric in cast(Sequence[DocumentedMetric], metrics_of(source))
    ]


def _documented(family: Metric, labels: tuple[str, ...]) -> DocumentedMetric:
    return DocumentedMetric(family.name, family.type, labels, family.documentation)


def _labels(registry: CollectorRegistry, family: Metric) -> tuple[str, ...]:
    """The labels of a metric that counts, which its family tells only once there is a sample."""
    collector = cast(Any, registry)._names_to_collectors[family.name]
    return tuple(collector._labelnames)


def _idle_broker() -> SimpleNamespace:
    """What the broker's collector looks at, in a broker that has nothing: it tells its metrics, without samples."""
    return SimpleNamespace(
        stats=SimpleNamespace(
            requests={}, produced_bytes=0, fetched_bytes=0, refused_connections=0, compactions=0, segments_deleted=0
        ),
        connections=(),
        request_memory=SimpleNamespace(held_bytes=0),
        syncer=SimpleNamespace(usual_s=0.0, syncs=0),
        topics=SimpleNamespace(partitions=lambda: (), resources=SimpleNamespace(files=())),
        groups=SimpleNamespace(list=lambda: ()),
    )
