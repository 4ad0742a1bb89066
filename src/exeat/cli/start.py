"""Where the program `exeat` begins: Ctrl-C ends it without a word, also while the rest of it is being loaded."""

from __future__ import annotations

import gc
import os

INTERRUPTED = 130  # as a shell counts it

try:
    import signal
except KeyboardInterrupt:
    os._exit(INTERRUPTED)


def console() -> None:
    """Load the rest and do what the arguments say. Does not come back."""
    # The caller may want it ignored; then it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, no one learns how a child has ended
    gc.disable()  # loading code makes no garbage that is worth looking for; `exeat.cli.main` enables it again
    from exeat.cli.main import console as begin

    try:
        begin()
    except KeyboardInterrupt:  # while it was ending already
        os._exit(INTERRUPTED)


def hear_interrupts() -> None:
    """From here on Ctrl-C is an exception, as ever: there is something to tidy up now."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: object) -> None:
    """Nothing has been started yet, so nothing is left behind."""
    os._exit(INTERRUPTED)
