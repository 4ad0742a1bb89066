"""`exeat run`: the gateway's process first, because it takes longest to load, and then everything else."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from exeat.errors import ConfigError, ExeatError
from exeat.jail.descriptors import ensure_standard_streams
from exeat.run.gatekeeper import Gatekeeper
from exeat.run.sealing import forget_start_folder
from exeat.run.settings import RunSettings
from exeat.run.summary import print_learned, say

if TYPE_CHECKING:
    from exeat.run.learn_out import LearnOut


def run(settings: RunSettings) -> int:
    """Run the command to its end. Gives the exit status for our own process."""
    try:
        return _run(settings)
    except BrokenPipeError:
        raise  # the reader of our own output has left
    except OSError as error:  # no process, descriptor or memory left, for example
        raise ExeatError("the run failed", detail=f"{type(error).__name__}: {error}") from None


def _run(settings: RunSettings) -> int:
    if not settings.argv or not settings.argv[0]:
        raise ConfigError("no command given", where="exeat run", expected="exeat run [OPTION...] -- COMMAND [ARG...]")
    forget_start_folder()
    # Loading code makes much that stays and little garbage: without looking for it, a fifth faster.
    gc.disable()
    ensure_standard_streams()
    if settings.folder is not None and settings.folder.was_created and not settings.quiet:
        listed = "empty" if settings.folder.starts_empty else "the shipped one"
        say(f"sandbox {settings.name} is new; its list is {listed}: exeat proxy list --name {settings.name}")
    out = _open_learn_out(settings, settings.learn_out) if settings.learn_out is not None else None
    try:
        gatekeeper = Gatekeeper(settings)
        if settings.ask and not gatekeeper.can_ask and not settings.quiet:
            say("--ask: there is neither a terminal nor a --name, so nobody can be asked; what no rule lists is denied")
        # From here on two processes load code at the same time.
        from exeat.run.dispatch import run_in_jail  # noqa: PLC0415

        try:
            status = run_in_jail(settings, gatekeeper)
        finally:
            gatekeeper.kill()
        if settings.learn:
            print_learned(gatekeeper.learned, out)
        return status
    finally:
        if out is not None:
            out.discard()


def _open_learn_out(settings: RunSettings, path: str) -> LearnOut:
    from exeat.run.learn_out import LearnOut  # noqa: PLC0415 - for runs that learn

    return LearnOut(path, (settings.audit or "", *settings.policy_files, *settings.secrets_files))
