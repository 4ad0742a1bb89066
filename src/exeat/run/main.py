"""`exeat run`: the gateway's process first, because it takes longest to load, and then everything else."""

from __future__ import annotations

import gc

from exeat.errors import ConfigError
from exeat.jail.descriptors import ensure_standard_streams
from exeat.run.gatekeeper import Gatekeeper
from exeat.run.sealing import forget_start_folder
from exeat.run.settings import RunSettings


def run(settings: RunSettings) -> int:
    """Run the command to its end. Gives the exit status for our own process."""
    if not settings.argv or not settings.argv[0]:
        raise ConfigError("no command given", where="exeat run", expected="exeat run [OPTION...] -- COMMAND [ARG...]")
    forget_start_folder()
    # Loading code makes much that stays and little garbage: without looking for it, a fifth faster.
    gc.disable()
    ensure_standard_streams()
    gatekeeper = Gatekeeper(settings)
    # From here on two processes load code at the same time.
    from exeat.run.dispatch import run_in_jail  # noqa: PLC0415

    try:
        return run_in_jail(settings, gatekeeper)
    finally:
        gatekeeper.kill()
