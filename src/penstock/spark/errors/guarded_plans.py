"""Guards the Python functions in the plan of a frame, without a change to the program.

A UDF in a projection, a filter, a key or argument of an aggregation, an `explode` or the condition of a join is
replaced: a projection below calls the guarded UDF, a filter leaves the failed rows out, and the expression uses the
value. The place of the record, which the guard reports, is made where the columns of the record are first there, and
carried up beside the columns of the program.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from pyspark.accumulators import Accumulator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, _parse_datatype_json_string
from pyspark.util import PythonEvalType

from penstock.spark.errors import reports
from penstock.spark.errors.guards import BY_COLUMN, BY_ROW, FAILED, guarded_command
from penstock.spark.errors.origins import CARRIED, HIDDEN, origin_column, origin_names
from penstock.spark.errors.row_checks import CHECK
from penstock.spark.jvm import jvm_of

logger = logging.getLogger(__name__)

_PASSING: Final = ("Filter", "EventTimeWatermark", "SubqueryAlias")
"""Operators with the columns of their only child."""
_CALLED_BELOW: Final = ("Aggregate", "Generate", "Join")
"""Other operators whose functions can be called in a projection below them."""
_BY_THEMSELVES: Final = ("MapInArrow", "MapInPandas", "TransformWithStateInPySpark")
"""Operators whose functions `guarded` and `stateful` guard."""


def guard_functions(frame: DataFrame, what: str) -> DataFrame:
    """The frame with the UDFs of its projections and filters guarded. Others are named in the log."""
    plan = frame._jdf.queryExecution().analyzed()
    if not any(True for _ in _functions_below(plan)):
        return frame
    guards = PlanGuards(frame, reports.accumulator(frame.sparkSession.sparkContext))
    made = guards.rewritten(plan)
    if guards.unguarded:
        logger.info("%s: an error in %s fails its batch: no guard", what, ", ".join(sorted(guards.unguarded)))
    return frame if made is plan else guards.frame_of(made)


def with_origins(frame: DataFrame) -> DataFrame | None:
    """The frame with the origin of its rows as one more column, `CARRIED`; None if its plan does not have it."""
    guards = PlanGuards(frame, reports.accumulator(frame.sparkSession.sparkContext), only_origins=True)
    made, origin = guards.with_origin(frame._jdf.queryExecution().analyzed())
    return None if origin is None else guards.frame_of(made).withColumnRenamed(str(origin.name()), CARRIED)


def all_of(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def kind_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def functions_in(expression: Any) -> Iterator[Any]:
    """The Python functions of an expression, those in arguments first."""
    for child in all_of(expression.children()):
        yield from functions_in(child)
    if kind_of(expression) == "PythonUDF":
        yield expression


def _functions_below(plan: Any) -> Iterator[Any]:
    for expression in all_of(plan.expressions()):
        yield from functions_in(expression)
    for child in all_of(plan.children()):
        yield from _functions_below(child)


class PlanGuards:
    """Rewrites one plan."""

    prefix: ClassVar[str] = HIDDEN
    """The beginning of the names of the columns that are added."""
    calls_below: ClassVar[bool] = True
    """Whether to guard the functions of `_CALLED_BELOW`."""

    def __init__(self, frame: DataFrame, channel: Accumulator[Any], *, only_origins: bool = False) -> None:
        self._spark = frame.sparkSession
        self._jvm: Any = jvm_of(self._spark)
        self._channel = channel
        self._only_origins = only_origins
        self._numbers = itertools.count()
        self.unguarded: set[str] = set()

    def frame_of(self, plan: Any) -> DataFrame:
        return DataFrame(
            self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._spark._jsparkSession, plan), self._spark
        )

    def rewritten(self, plan: Any) -> Any:
        """The plan with the same columns."""
        made, origin = self._rewritten(plan, False)
        return made if origin is None else self._project(all_of(plan.output()), made)

    def with_origin(self, plan: Any) -> tuple[Any, Any]:
        """The plan with the origin of its rows as its last column, and that column; as it is, and None, without."""
        made, origin = self._rewritten(plan, True)
        return (plan, None) if origin is None else (self._project([*all_of(plan.output()), origin], made), origin)

    def _rewritten(self, plan: Any, wanted: bool) -> tuple[Any, Any]:
        """The plan, and the attribute with the origin of its rows: added to its columns if `wanted` and known."""
        kind = kind_of(plan)
        if kind in _CALLED_BELOW and self.calls_below and not self._only_origins and self._functions(plan):
            return self._with_origin(self._with_calls_below(plan, kind), wanted)
        if kind not in ("Project", *_PASSING):
            return self._with_origin(self._with_plain_children(plan, kind), wanted)
        is_rewritten = kind in ("Project", "Filter") and self._changes(plan)
        child = plan.children().apply(0)
        below, origin = self._rewritten(child, wanted or is_rewritten)
        if not is_rewritten:
            if below is child:
                return self._with_origin(plan, wanted)
            if kind == "Project" and origin is not None:
                return self._project([*all_of(plan.projectList()), origin], below), origin
            made = plan.withNewChildren(self._seq([below]))
            return (made, origin) if origin is not None else self._with_origin(made, wanted)
        columns = all_of(child.output())
        below, expressions = self._without_failing(below, all_of(plan.expressions()), origin)
        if kind == "Filter":
            below = self._jvm.org.apache.spark.sql.catalyst.plans.logical.Filter(expressions[0], below)
        else:
            columns = expressions
        made = self._project(columns if origin is None else [*columns, origin], below)
        return (made, origin) if origin is not None else self._with_origin(made, wanted)

    def _changes(self, plan: Any) -> bool:
        """Whether rows can fail in this projection or filter so that they can be left out."""
        return any(self._can_guard(each) for each in self._functions(plan))

    def _without_failing(self, below: Any, expressions: list[Any], origin: Any) -> tuple[Any, list[Any]]:
        """The plan without the rows for which the expressions fail, and the expressions for the others."""
        while found := [each for expression in expressions for each in self._innermost(expression)]:
            below, values = self._guarded(below, found, origin)
            expressions = [self._replaced(expression, values) for expression in expressions]
        return below, expressions

    def _with_calls_below(self, plan: Any, kind: str) -> Any:
        """The operator with the values of functions that its children call."""
        logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        children = [self._rewritten(child, True) for child in all_of(plan.children())]
        if kind == "Aggregate":
            below, keys, results = self._aggregated(*children[0], plan)
            made = logical.Aggregate(self._seq(keys), self._seq(results), below, plan.hint())
        elif kind == "Generate":
            below, (generator,) = self._without_failing(children[0][0], [plan.generator()], children[0][1])
            made = logical.Generate(
                generator,
                plan.unrequiredChildIndex(),
                plan.outer(),
                plan.qualifier(),
                plan.generatorOutput(),
                below,
            )
        else:
            condition, sides = plan.condition().get(), []
            for below, origin in children:
                below, condition = self._joined(below, condition, origin)
                sides.append(below)
            some = self._jvm.scala.Option.apply
            made = logical.Join(*sides, plan.joinType(), some(condition), plan.hint())
        self.unguarded.update(
            str(each.name())
            for each in self._functions(plan)
            if any(self._is_same(each, other) for other in self._functions(made))
        )
        return made if kind == "Aggregate" else self._project(all_of(plan.output()), made)

    def _aggregated(self, below: Any, origin: Any, plan: Any) -> tuple[Any, list[Any], list[Any]]:
        """The plan that calls the functions of keys and of aggregated arguments, and the keys and results for it."""
        keys, results = all_of(plan.groupingExpressions()), all_of(plan.aggregateExpressions())
        while True:
            of_keys = [each for key in keys for each in self._innermost(key)]
            arguments = [each for result in results for each in _arguments_of_aggregates(result)]
            found = [*of_keys, *(each for argument in arguments for each in self._innermost(argument))]
            if not found:
                return below, keys, results
            # The result may have a key's function again, as a column.
            again = [
                each
                for result in results
                for each in functions_in(result)
                if any(self._is_same(each, key) for key in of_keys)
            ]
            below, values = self._guarded(below, [*found, *again], origin)
            keys = [self._replaced(key, values) for key in keys]
            results = [self._replaced(result, values) for result in results]

    def _joined(self, below: Any, condition: Any, origin: Any) -> tuple[Any, Any]:
        """One side of a join with the functions of the condition that need only its columns, and the condition."""
        while found := [each for each in self._innermost(condition) if each.references().subsetOf(below.outputSet())]:
            below, values = self._guarded(below, found, origin)
            condition = self._replaced(condition, values)
        return below, condition

    def _with_plain_children(self, plan: Any, kind: str) -> Any:
        if kind not in _BY_THEMSELVES:
            self.unguarded.update(str(each.name()) for each in self._functions(plan))
        children = all_of(plan.children())
        made = [self.rewritten(child) for child in children]
        if all(after is before for after, before in zip(made, children, strict=True)):
            return plan
        return plan.withNewChildren(self._seq(made))

    def _with_origin(self, plan: Any, wanted: bool) -> tuple[Any, Any]:
        if not wanted or origin_names([str(each.name()) for each in all_of(plan.output())]) is None:
            return plan, None
        frame = self.frame_of(plan)
        made = frame.withColumn(self._name(), origin_column(frame))._jdf.queryExecution().analyzed()
        return made, all_of(made.output())[-1]

    def _functions(self, plan: Any) -> list[Any]:
        return [each for expression in all_of(plan.expressions()) for each in functions_in(expression)]

    def _can_guard(self, function: Any) -> bool:
        # A check reports by itself, and stops the query where it must.
        if self._only_origins or str(function.name()) == CHECK:
            return False
        kind = int(function.evalType())
        can = kind in BY_ROW or kind in BY_COLUMN
        if kind == PythonEvalType.SQL_SCALAR_PANDAS_UDF:  # pandas has no columns of structs inside structs
            can = not isinstance(_parse_datatype_json_string(function.dataType().json()), StructType)
        if not can:
            self.unguarded.add(str(function.name()))
        return can

    def _innermost(self, expression: Any) -> list[Any]:
        """Functions that can be guarded and whose arguments contain none of them."""
        found = []
        for each in functions_in(expression):
            inner = [other for child in all_of(each.children()) for other in functions_in(child)]
            if self._can_guard(each) and not any(self._can_guard(other) for other in inner):
                found.append(each)
        return found

    def _guarded(self, below: Any, functions: Sequence[Any], origin: Any) -> tuple[Any, list[tuple[Any, Any]]]:
        """The plan that calls these functions and leaves out the rows that fail, and the value of each function."""
        frame = self.frame_of(below)
        called: list[tuple[Any, str]] = []
        for function in functions:
            if not any(self._is_same(function, other) for other, _ in called):
                called.append((function, self._name()))
        columns = {name: self._column(self._guard(function, origin)) for function, name in called}
        names = [name for _, name in called]
        made = frame.withColumns(columns).where(~_any_failed(names))._jdf.queryExecution().analyzed()
        attributes = {str(each.name()): each for each in all_of(made.output())}
        values = [
            (function, attributes[name])
            for function in functions
            for other, name in called
            if self._is_same(function, other)
        ]
        return made, values

    def _is_same(self, one: Any, other: Any) -> bool:
        return bool(one.equals(other) or (one.udfDeterministic() and one.semanticEquals(other)))

    def _guard(self, function: Any, origin: Any) -> Any:
        """The guarded function, as an expression."""
        known = function.func()
        tag = self._jvm.scala.reflect.ClassTag.Byte()
        command, answer = guarded_command(
            bytes(known.command().toArray(tag)), int(function.evalType()), f"function {function.name()}", self._channel
        )
        made = self._jvm.org.apache.spark.api.python.SimplePythonFunction(
            bytearray(command),
            known.envVars(),
            known.pythonIncludes(),
            known.pythonExec(),
            known.pythonVer(),
            known.broadcastVars(),
            known.accumulator(),
        )
        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        first = origin if origin is not None else F.lit(None).cast("string")._jc
        if origin is None:
            first = (
                self._spark.range(1)
                .select(Column(first))
                ._jdf.queryExecution()
                .analyzed()
                .projectList()
                .apply(0)
                .child()
            )
        return expressions.PythonUDF(
            str(function.name()),
            made,
            self._spark._jsparkSession.parseDataType(answer.json()),
            self._seq([first, *all_of(function.children())]),
            int(function.evalType()),
            False,  # not deterministic: Spark would call it again for the filter
            expressions.NamedExpression.newExprId(),
        )

    def _replaced(self, expression: Any, values: Sequence[tuple[Any, Any]]) -> Any:
        for function, answer in values:
            if kind_of(expression) == "PythonUDF" and expression.equals(function):
                none = self._jvm.scala.Option.apply(None)
                return self._jvm.org.apache.spark.sql.catalyst.expressions.GetStructField(answer, 0, none)
        children = all_of(expression.children())
        made = [self._replaced(child, values) for child in children]
        if all(after is before for after, before in zip(made, children, strict=True)):
            return expression
        return expression.withNewChildren(self._seq(made))

    def _project(self, columns: Sequence[Any], below: Any) -> Any:
        return self._jvm.org.apache.spark.sql.catalyst.plans.logical.Project(self._seq(columns), below)

    def _column(self, expression: Any) -> Column:
        return Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))

    def _seq(self, items: Sequence[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(list(items))

    def _name(self) -> str:
        return f"{self.prefix}{next(self._numbers)}"


def _arguments_of_aggregates(expression: Any) -> Iterator[Any]:
    for child in all_of(expression.children()):
        if kind_of(expression) == "AggregateExpression":
            yield child
        else:
            yield from _arguments_of_aggregates(child)


def _any_failed(names: Sequence[str]) -> Column:
    failed = F.col(names[0])[FAILED]
    for name in names[1:]:
        failed = failed | F.col(name)[FAILED]
    return failed
