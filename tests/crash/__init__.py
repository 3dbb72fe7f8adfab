"""The broker is killed, its disk filled, its files cut and spoilt; what it acknowledged must come through.

Every test here runs the real broker and real clients. What the clients were promised is written down as they hear it
(`load`), the broker is killed at moments that follow from a seed (`killing`), and in the end everything is read again
and held against the promises. A failed run prints its seed: `PENSTOCK_SEED=N pytest tests/crash` does the same again,
as far as time can be repeated.
"""
