"""Queue semantics on a log: the members of a group divide partitions record by record."""
