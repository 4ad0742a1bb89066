"""`exeat run`: the gateway's process first, because it takes longest to load, and then everything else."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from exeat.errors import ConfigError
from exeat.jail.descriptors import ensure_standard_streams
from exeat.run.gatekeeper import Gatekeeper
from exeat.run.log import RunLog
from exeat.run.sealing import forget_start_folder
from exeat.run.settings import RunSettings
from exeat.run.summary import print_learned, say

if TYPE_CHECKING:
    from exeat.run.learn_out import LearnOut


def run(settings: RunSettings) -> int:
    """Run the command to its end. Gives the exit status for our own process."""
    if not settings.argv or not settings.argv[0]:
        raise ConfigError("no command given", where="exeat run", expected="exeat run [OPTION...] -- COMMAND [ARG...]")
    forget_start_folder()
    # Loading code makes much that stays and little garbage: without looking for it, a fifth faster.
    gc.disable()
    ensure_standard_streams()
    if settings.folder is not None and settings.folder.was_created and not settings.quiet:
        say(f"sandbox {settings.name} is new; its list is the shipped one: exeat proxy list --name {settings.name}")
    out = _open_learn_out(settings, settings.learn_out) if settings.learn_out is not None else None
    log: RunLog | None = None
    try:
        log = RunLog(settings.log_in_reach, settings.audit_rotation.keep if settings.hides_by_mounts else 0)
        settings.log_files = tuple(log.files)
        gatekeeper = Gatekeeper(settings)
        log.is_forked()
        if settings.ask and not gatekeeper.can_ask and not settings.quiet:
            say("--ask: there is neither a terminal nor a --name, so nobody can be asked; what no rule lists is denied")
        # From here on two processes load code at the same time.
        from exeat.run.dispatch import run_in_jail  # noqa: PLC0415

        try:
            status = run_in_jail(settings, gatekeeper)
        finally:
            gatekeeper.kill()
        log.finish()
        if settings.learn:
            print_learned(gatekeeper.learned, out)
        return status
    except BaseException:
        if log is not None:
            log.discard()
        raise
    finally:
        if out is not None:
            out.discard()


def _open_learn_out(settings: RunSettings, path: str) -> LearnOut:
    from exeat.run.learn_out import LearnOut  # noqa: PLC0415 - for runs that learn

    return LearnOut(path, (settings.audit or "", *settings.policy_files, *settings.secrets_files))
