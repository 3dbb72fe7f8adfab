"""Tables of a data lake, Delta and Iceberg, written exactly-once without Spark or a JVM.

Records of a topic come in, or batches of a pipeline; rows of a table go out. Each commit stores, together with its
rows, up to where they were read: `LakeTable` names a table, `LakeSink` fills it from a topic.
"""

from penstock.lakes.commits import LakeCommit as LakeCommit
from penstock.lakes.sink import LakeSink as LakeSink
from penstock.lakes.table import LakeTable as LakeTable
from penstock.lakes.writing import Delete as Delete
