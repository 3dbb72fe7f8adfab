"""The fault harness behind `penstock prove`: kill a broker, then count what was lost, repeated or out of order.

Input: a data folder. `outage` starts a broker for it, sends while the broker is killed and restarted, and reads
everything back. `tally` counts, and its `Verdict` says whether the guarantees held.
"""
