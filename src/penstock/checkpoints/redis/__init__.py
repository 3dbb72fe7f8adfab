"""Checkpoints in Redis: each step is one script, and so atomic."""
