"""Transactions: records in several partitions, and offsets, that become visible together or not at all.

Requests of transactional producers come in; their state goes to `__transaction_state`, and the markers that end their
transactions go to the partitions. Producer ids, including those of merely idempotent producers, are assigned here.
"""
