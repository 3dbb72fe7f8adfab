"""`penstock demo`: the whole product at work for a minute, with parts of it killed, and everything counted.

A generator sends card transactions and page events and keeps its own count; two consumers judge and count them; a
pipeline on Spark adds up the use of each page; consumer, driver and broker are killed on the way. What came out is held
against what the generator says it sent: that decides the exit code. Each part is a process of its own, which belongs to
the demo and ends with it.
"""

from penstock.cli.demo.command import EXAMPLES, demo

__all__ = ["EXAMPLES", "demo"]
