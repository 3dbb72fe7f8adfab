"""Forms: the columns of a type in Spark, and the conversion of its values.

The type of a topic (a Python type, an Avro schema, a Protobuf message) becomes a `Form`, a tree that knows the Spark
type, converts many values to one Arrow array, and a cell back to a value. A type without columns raises a ConfigError
that names the field.
"""

from __future__ import annotations

from penstock.spark.values.forms.form import ArrayForm, Field, Form, MapForm, RecordForm, ScalarForm

__all__ = ["ArrayForm", "Field", "Form", "MapForm", "RecordForm", "ScalarForm"]
