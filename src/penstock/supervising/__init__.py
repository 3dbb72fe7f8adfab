"""Supervision: programs with apps and pipelines, each in a process of its own, which are started again when they die.

In come files and a policy; out go log files, the state of each program, and whether all of them ended well. The
process of a program reports its progress through `reporting`; everything else here is the supervisor's side.
"""

from penstock.observe.programs import ProgramStatus
from penstock.supervising.finding import Program, programs_in
from penstock.supervising.restarts import RestartPolicy
from penstock.supervising.supervisor import Supervisor

__all__ = ["Program", "ProgramStatus", "RestartPolicy", "Supervisor", "programs_in"]
