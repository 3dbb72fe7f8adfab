"""Forms: the columns of a type in Arrow, and the conversion of its values.

The type of a topic (a Python type, an Avro schema, a Protobuf message) becomes a `Form`, a tree that knows the Arrow
type, converts many values to one Arrow array, and a cell back to a value. A type without columns raises a ConfigError
that names the field. Pipelines and queries read typed topics by them.
"""

from __future__ import annotations

from penstock.serde.forms.form import ArrayForm, Field, Form, MapForm, RecordForm, ScalarForm
from penstock.serde.forms.topics import VALUE, TopicForm, topic_form

__all__ = [
    "ArrayForm",
    "Field",
    "Form",
    "MapForm",
    "RecordForm",
    "ScalarForm",
    "TopicForm",
    "VALUE",
    "topic_form",
]
