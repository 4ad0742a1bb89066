"""Which way a command is run, by jail and system."""

from __future__ import annotations

import sys

from exeat.errors import JailError
from exeat.run.gateway_process.process import GatewayProcess
from exeat.run.settings import RunSettings


def run_in_jail(settings: RunSettings, gateway: GatewayProcess) -> int:
    """Run the command in the jail that was asked for, or raise JailError. Never in another, and never in none."""
    if settings.files.nest:
        from exeat.run.jails.nested import refuse_nesting  # noqa: PLC0415 - not the usual way

        refuse_nesting(settings)
    if settings.jail == "env":
        from exeat.run.jails.unconfined import run_with_variables  # noqa: PLC0415 - not the usual way

        return run_with_variables(settings, gateway)
    if settings.jail == "seatbelt" or (settings.jail == "auto" and sys.platform == "darwin"):
        from exeat.run.jails.seatbelt_run import run_in_seatbelt  # noqa: PLC0415 - macOS only

        return run_in_seatbelt(settings, gateway)
    if not sys.platform.startswith("linux"):
        raise JailError(
            f"the {'netns' if settings.jail == 'auto' else settings.jail} jail needs Linux",
            detail=f"this is {sys.platform}",
            fix="--jail env sets proxy variables, which is not a boundary",
        )
    from exeat.run.jails.confined import run_confined  # noqa: PLC0415 - Linux only

    return run_confined(settings, gateway)
