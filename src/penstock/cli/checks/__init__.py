"""What `penstock doctor` looks at: small checks, each of which gives findings and changes nothing that stays.

A check takes what it looks at as arguments, so that tests can give it a machine that is ill; it answers with findings,
each well, doubtful or wrong, and what to do about it. `examining` runs them all at once and within a time.
"""
