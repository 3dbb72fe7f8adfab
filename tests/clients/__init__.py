"""Every Kafka client, unmodified, against our broker and against Apache Kafka: the same tests, the same answers.

A test that takes the fixture `server` runs twice, once against each, and asserts exact results and error codes; where
the two legitimately differ (texts of error messages, ids) it asserts nothing. Tests that take `penstock` are about
promises that only our broker makes. Names of topics and groups are always fresh, so that one server serves all tests.
"""
