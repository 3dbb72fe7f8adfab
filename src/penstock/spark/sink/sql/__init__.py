"""SQL tables as targets: the rows of a batch and its mark are written in one database transaction.

`table` has the public class, `columns` maps columns to types, `database` defines what a database must do, and
`postgres` and `sqlite` implement it. `delivery` writes batches. `shared_state` has the target whose rows are updated by
a function.
"""
