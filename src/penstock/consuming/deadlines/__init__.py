"""Deadlines: run analysers in parallel and return the results that are there when time is up."""
