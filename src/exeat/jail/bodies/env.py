"""No jail at all: the command is told of the gateway by variables. Any POSIX system.

This is not a boundary, and it must never be taken for one: a program that ignores the variables reaches everything.
"""

from __future__ import annotations

from exeat.jail.bodies.child import ChildJail
from exeat.jail.jail import Examination


def open_jail() -> ChildJail:
    return ChildJail()


def examine() -> Examination:
    return Examination(True, "variables only: not a boundary")
