"""Compaction: rewriting sealed segments so that only the last record of each key stays."""
