"""Lease groups: members divide the partitions of any stream through a checkpoint store."""
