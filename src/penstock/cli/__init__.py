"""The `penstock` command: one module per noun, imported only when it is used, so that `penstock --help` is fast."""

from penstock.cli.main import main

__all__ = ["main"]
