"""Checkpoints in PostgreSQL, for groups on many machines and for effects in the same database."""
