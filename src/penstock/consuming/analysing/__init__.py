"""The parts of `within`: analysers, each with workers of its own, and calls that take what is there when time is up.

An argument comes in and is handed to every analyser at once; answers, failures and what is missing go out as a Result.
"""

from __future__ import annotations
