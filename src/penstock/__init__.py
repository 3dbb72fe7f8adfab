"""Penstock carries events: from the program that makes them, through a durable log, to the code that acts on them."""

__version__ = "0.1.0"
