"""`python -m bench.building`: build one jail with nothing in it, and print what that took.

A process of its own for each, as in `exeat run`: a second jail of the same process would find everything warm.
"""

import json
import os
import resource
import sys
import time

from exeat.errors import JailError
from exeat.jail.bodies.netns import open_jail
from exeat.jail.environment import Variables
from exeat.jail.files.mounts import View
from exeat.jail.files.view import Layers
from exeat.jail.jail import Spec


def _cpu_s() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def main() -> int:
    view = View(Layers((), limit=64 << 20))
    jail = open_jail()
    spec = Spec(["true"], "/", Variables(dict(os.environ)), view=view)
    cpu_s, began = _cpu_s(), time.perf_counter()
    try:
        sockets = jail.build(spec).sockets
    except JailError as error:
        print(f"{error.public}: {error.detail}", file=sys.stderr)
        return 2
    wall_s = time.perf_counter() - began
    jail.close()  # its processes are waited for, so that their CPU time counts
    cpu_s = _cpu_s() - cpu_s
    sockets.close()
    print(json.dumps({"wall_ms": wall_s * 1e3, "cpu_ms": cpu_s * 1e3}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
