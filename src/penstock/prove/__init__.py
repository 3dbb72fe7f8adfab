"""The fault harness: break it on purpose, then count what was lost, what came twice and what came out of order.

In comes a data folder; `outage` starts a broker for it, sends to it while it is killed and started again, reads
everything back, and gives out a `tally.Verdict` that says whether the promises held. `deaths` kills consumers and
producers at a moment that was planned, and `judging` says of what they left whether their guarantee held.
"""
