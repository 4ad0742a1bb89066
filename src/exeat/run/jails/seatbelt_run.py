"""`exeat run` on macOS: the command under a Seatbelt profile, beside its gateway."""

from __future__ import annotations

import os
import shutil
import sys

from exeat.errors import ConfigError
from exeat.jail.seatbelt import build_profile, why_not, wrap_command
from exeat.run.environment import inherited_environment
from exeat.run.gateway_process.process import GatewayProcess
from exeat.run.jails.unconfined import run_beside_gateway
from exeat.run.settings import RunSettings


def _files_to_come(settings: RunSettings) -> list[str]:
    """Those of the log that are made when it is full: the profile goes by path, whether or not there is a file."""
    log = settings.log_in_reach
    if log is None or log.startswith(("-", "/dev/")):
        return []
    return [f"{log}.next", *(f"{log}.{number}" for number in range(1, settings.audit_rotation.keep + 2))]


def run_in_seatbelt(settings: RunSettings, gateway: GatewayProcess) -> int:
    """Run the command. Gives the exit status for our own process. Raises JailError where there is no Seatbelt."""
    problem = why_not()
    if problem is not None:
        raise problem
    from exeat.run.files.hidden_files import find_hidden, own_files  # noqa: PLC0415

    hidden = [entry.path for entry in find_hidden(settings, own_files(settings))]
    folders = [path for path in hidden if os.path.isdir(path)]
    files = [path for path in hidden if path not in folders]
    # sandbox-exec has an exit status of its own for what it cannot start: find out before.
    program = settings.argv[0]
    path = inherited_environment(settings.environ).get("PATH")
    found = program if os.path.dirname(program) else shutil.which(program, path=path)
    if found is None or not os.path.exists(found):
        sys.stderr.write(f"exeat: {program}: {os.strerror(2)}\n")
        return 127
    if os.path.isdir(found) or not os.access(found, os.X_OK):
        sys.stderr.write(f"exeat: {program}: {os.strerror(13)}\n")
        return 126

    def wrap(argv: list[str], port: int) -> list[str]:
        try:
            profile = build_profile(
                port,
                unix=map(os.path.realpath, settings.unix),
                hidden_files=map(os.path.realpath, (*files, *_files_to_come(settings))),
                hidden_folders=map(os.path.realpath, folders),
            )
        except ValueError as error:
            raise ConfigError(str(error), where="--unix, --audit or --policy", expected="a plain path") from None
        return wrap_command(profile, argv)

    return run_beside_gateway(settings, gateway, "seatbelt", wrap)
