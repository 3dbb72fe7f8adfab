"""The drills of `penstock cluster drill`: each breaks a running cluster in one way, and counts what became of records.

`stage` has what all of them use. A drill is a function from a `Stage` to an `Outcome`, listed in `catalogue`.
"""

from penstock.cluster.drills.catalogue import DRILLS as DRILLS
from penstock.cluster.drills.catalogue import Drill as Drill
from penstock.cluster.drills.catalogue import run as run
