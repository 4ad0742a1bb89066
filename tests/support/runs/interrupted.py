"""`exeat` with Ctrl-C at a chosen moment: `interrupted.py MOMENT ARGUMENT...`.

A moment is the name of a module, when it is asked for, or `fork` and a number, when that process is about to be made.
Only the standard library is used here: what is to be seen is how exeat itself is loaded.
"""

from __future__ import annotations

import os
import sys

_moment = sys.argv.pop(1)
_pid = os.getpid()
_forks = 0


def _interrupt(event: str, arguments: tuple[object, ...]) -> None:
    global _forks, _moment
    if os.getpid() != _pid:
        return
    if event == "os.fork":
        _forks += 1
    if (event == "import" and arguments[0] == _moment) or (event == "os.fork" and f"fork {_forks}" == _moment):
        _moment = ""
        os.kill(_pid, 2)  # SIGINT; the module signal is for exeat to load


sys.addaudithook(_interrupt)
from exeat.cli.start import console  # noqa: E402

console()
