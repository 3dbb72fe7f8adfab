"""Checkpoints in plain files: a folder on a local disk, shared by the processes of one machine."""
