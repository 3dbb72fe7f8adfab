"""The checks of `penstock doctor`. They return findings and leave nothing behind.

A check takes what it inspects as arguments, so that tests can pass a broken machine. Each finding is ok, a warning or a
failure, with what to do about it.
"""
