"""A run whose jail is built before its command is known. The program names the command later.

Until then no secret is fetched and no socket served, and the processes of the jail are forks of one that never held a
value. What was found out for the jail is found out again then. If anything is not the same any more, it is not used,
and the program starts another run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from exeat.errors import ExeatError
from exeat.run.gateway_process.scrubbing import ClosedMemory
from exeat.run.settings import Plan, variables_of

KIND = "netns"  # the only jail that can do this

if TYPE_CHECKING:
    from exeat.jail.bodies.netns import NetnsJail
    from exeat.jail.jail import Built, Spec
    from exeat.jail.messages import Take
    from exeat.run.gateway_process.process import GatewayProcess
    from exeat.run.viewed_files import ViewedFiles


class NotTakenError(ExeatError):
    """There is no command for this one. The program has been told, or has ended."""


class Late(Protocol):
    """The program, which knows the command."""

    def wait(self) -> tuple[Take, list[int]]:
        """Until it is wanted. Raises NotTakenError."""

    def adopt(self, take: Take, own: int, given: int) -> dict[bytes, bytes] | None:
        """Have the environment that comes with it, and return the command's if that is another. The files stay open."""

    def accept(self) -> list[int]:
        """Say that it can be used, and receive the command's streams. Raises NotTakenError."""

    def leave(self) -> None:
        """This process has no part in it."""


def bind(
    late: Late, plan: Plan, gateway: GatewayProcess, jail: NetnsJail, files: ViewedFiles, spec: Spec, built: Built
) -> Plan:
    """Wait for the command, have the jail become its own and the gateway serve it. Returns the plan as it is now.

    Raises NotTakenError if something else is known than when it was built.
    """
    files.rehearse(plan)
    take, environs = late.wait()
    streams: list[int] = []
    try:
        gateway.take(take, environs, built, KIND)  # which gets ready while we look
        with ClosedMemory():
            given = late.adopt(take, environs[0], environs[-1])
            known = plan.replace(settings=plan.settings.replace(argv=list(take.argv), environ=given))
            needs_secrets = plan.prepared.trust is not None
            if not needs_secrets:
                _tell_command(known, jail, spec, take.umask)  # which gets ready, too
            files.take_up(known)
            streams = late.accept()
            known = known.replace(prepared=gateway.begin_taken(plan.prepared, given, streams[2]))
        files.plan = known
        if needs_secrets:
            _tell_command(known, jail, spec, take.umask)
        jail.pass_streams(streams)
        gateway.await_ready()
    finally:
        for each in (*environs, *streams):
            os.close(each)
    return known


def _tell_command(plan: Plan, jail: NetnsJail, spec: Spec, umask: int) -> None:
    """What it is to become, with which variables. It begins only when it is let go."""
    variables = variables_of(plan.settings, plan.prepared)
    jail.become(plan.settings.argv, jail.environ(spec.replace(variables=variables)), umask)
