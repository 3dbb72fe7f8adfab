"""Between Python values and columns: what a type looks like in Spark, and the way there and back.

In comes what a topic carries (a Python type, an Avro schema, a Protobuf message); out goes a `Form`, a tree that knows
the Spark type, how many values at once become one Arrow array, and what a value in a column is in Python. What has no
columns is a ConfigError that names the field.
"""

from __future__ import annotations

from penstock.spark.forms.form import ArrayForm, Field, Form, MapForm, RecordForm, ScalarForm

__all__ = ["ArrayForm", "Field", "Form", "MapForm", "RecordForm", "ScalarForm"]
