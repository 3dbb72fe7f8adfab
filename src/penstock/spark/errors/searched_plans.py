"""Finds the rows for which a built-in expression fails, such as a cast or a division in ANSI mode.

Each expression of a projection or a filter is evaluated where its error becomes null; rows that have it are reported
and left out. This is slower than the plan of the program, so a query is searched only after such an error.

Spark's TryEval alone does not do it: its code generator computes what several expressions have in common before them,
outside of TryEval. So the expression stands in the lambda function of an array transform, which Spark interprets by
itself.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.spark.errors import reports
from penstock.spark.errors.guarded_plans import PlanGuards, all_of, functions_in, kind_of
from penstock.spark.errors.origins import HIDDEN
from penstock.spark.errors.row_checks import CHECK, RowRule, checked

logger = logging.getLogger(__name__)

FAILED_KIND: Final = "ExpressionFailed"
"""The kind of error in the letters, to filter by."""
_SAFE: Final = ("AttributeReference", "Literal")
"""Expressions that cannot fail."""
_SAFE_IF_PARTS_ARE: Final = ("Alias", "GetStructField", "CreateNamedStruct")
_LONGEST: Final = 120


def search(frame: DataFrame, what: str) -> DataFrame | None:
    """The frame without the rows for which an expression of its projections and filters fails; None if it has none."""
    plan = frame._jdf.queryExecution().analyzed()
    searching = _PlanSearch(frame, reports.accumulator(frame.sparkSession.sparkContext))
    try:
        made = searching.rewritten(plan)
        return None if made is plan else searching.frame_of(made)
    except (PySparkException, Py4JError) as error:
        logger.warning("%s: the rows that fail cannot be searched for: %s", what, str(error).partition("\n")[0])
        return None


class _PlanSearch(PlanGuards):
    """Rewrites a plan whose functions are guarded already."""

    prefix = f"{HIDDEN}search_"
    calls_below = False

    def _changes(self, plan: Any) -> bool:
        return any(self._parts(each) for each in all_of(plan.expressions()))

    def _without_failing(self, below: Any, expressions: list[Any], origin: Any) -> tuple[Any, list[Any]]:
        parts = [part for expression in expressions for part in self._parts(expression)]
        names = [self._name() for _ in parts]
        # Not deterministic: otherwise Spark copies the expression to every place that uses its outcome.
        once = F.spark_partition_id() >= 0
        tried = {name: F.when(once, self._column(self._tried(part))) for name, part in zip(names, parts, strict=True)}
        frame = self.frame_of(below).withColumns(tried)
        rules = [_rule(part) for part in parts]
        made = checked(
            frame,
            rules,
            [F.col(name).isNotNull() for name in names],
            origin=F.lit(None).cast("string") if origin is None else self._column(origin),
        )
        plan = made._jdf.queryExecution().analyzed()
        found = {str(each.name()): each for each in all_of(plan.output())}
        values = [(part, self._value(found[name], part)) for part, name in zip(parts, names, strict=True)]
        return plan, [self._with_values(expression, values) for expression in expressions]

    def _parts(self, expression: Any) -> list[Any]:
        """The expressions to evaluate by themselves: the whole, or the arguments of functions in Python."""
        kind, children = kind_of(expression), all_of(expression.children())
        if kind == "PythonUDF" and str(expression.name()) == CHECK:
            return []
        if kind == "PythonUDF" or kind in _SAFE_IF_PARTS_ARE:
            return [part for child in children for part in self._parts(child)]
        if _has_function(expression):
            # Spark evaluates their arguments for every row, but others perhaps not: a CASE may keep them from failing.
            return [part for child in children if _has_function(child) for part in self._parts(child)]
        can_fail = kind not in _SAFE and expression.deterministic() and not self._raises(expression)
        return [expression] if can_fail else []

    def _raises(self, expression: Any) -> bool:
        return kind_of(expression) == "RaiseError" or any(self._raises(each) for each in all_of(expression.children()))

    def _tried(self, part: Any) -> Any:
        """An expression that is null where this one fails, and otherwise a struct with its value."""
        jvm = self._jvm
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        literal = expressions.Literal
        name, one = literal.create("value", self._type("string")), literal.create(1, self._type("int"))
        made = expressions.TryEval(expressions.CreateNamedStruct(self._seq([name, part])))
        variable = expressions.NamedLambdaVariable(
            "row",
            self._type("int"),
            False,
            expressions.NamedExpression.newExprId(),
            jvm.java.util.concurrent.atomic.AtomicReference(),
        )
        alone = expressions.ArrayTransform(
            expressions.CreateArray(self._seq([one]), False),
            expressions.LambdaFunction(made, self._seq([variable]), False),
        )
        return expressions.GetArrayItem(alone, literal.create(0, self._type("int")), False)

    def _value(self, tried: Any, part: Any) -> Any:
        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        value = expressions.GetStructField(tried, 0, self._jvm.scala.Option.apply(None))
        return value if part.nullable() else expressions.KnownNotNull(value)

    def _with_values(self, expression: Any, values: list[tuple[Any, Any]]) -> Any:
        for part, value in values:
            if expression.equals(part):
                return value
        children = all_of(expression.children())
        made = [self._with_values(child, values) for child in children]
        if all(after is before for after, before in zip(made, children, strict=True)):
            return expression
        return expression.withNewChildren(self._seq(made))

    def _type(self, name: str) -> Any:
        return self._spark._jsparkSession.parseDataType(f'"{"integer" if name == "int" else name}"')


def _has_function(expression: Any) -> bool:
    return any(True for _ in functions_in(expression))


def _rule(part: Any) -> RowRule:
    text = str(part.sql())
    short = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return RowRule(f"expression {short}", f"{short} fails for this row", FAILED_KIND, is_listed=False)
