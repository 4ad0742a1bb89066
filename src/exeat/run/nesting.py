"""`--nest`: when the command may make user namespaces, and the message about programs that tried without it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from exeat.errors import ConfigError
from exeat.file_policy import FilePolicy
from exeat.jail.select import Body

_WHERE = "--nest"


def refuse_nesting(body: Body, files: FilePolicy) -> None:
    """Raise ConfigError where a sandbox inside is not possible, or would undo the jail."""
    if not body.nests:
        raise ConfigError(f"not in the {body.kind} jail", where=_WHERE, expected="--jail netns")
    if os.geteuid() == 0:
        # Linux lets root's number into a new user namespace only by a capability (CAP_SETFCAP), so no sandbox would
        # work; and to file systems that can be mounted in one (cgroup2) a program with that number is the real root.
        raise ConfigError("not available to root", where=_WHERE, expected="an ordinary user")
    if files.mode == "host":
        raise ConfigError(
            "with --files host things are hidden by mounts, and a program with namespaces of its own gets around them",
            where=_WHERE,
            expected="--files view",
        )


def refuse_covers(covered: Iterable[str], shared: Sequence[str]) -> None:
    """Raise ConfigError for a path that would be hidden or held by a mount in a folder that is shared for real.

    In a mount namespace of its own, a program takes all mounts away and keeps a descriptor of the folder. Nothing is a
    mount point for it then, so it can rename what is covered to where no cover is.
    """
    roots = [os.path.realpath(path) for path in shared]
    for path in covered:
        real = os.path.realpath(path)
        if any(os.path.commonpath((real, root)) == root for root in roots):
            raise ConfigError(
                f"{path!r} is in a folder that the command can change, and could not be protected from it",
                where=_WHERE,
                expected="another place for it, or no --nest",
            )


def advice_on_nesting(programs: Sequence[str]) -> str:
    """The line at the end of a run; empty if no program was refused."""
    if not programs:
        return ""
    who = ", ".join(programs)
    option = "--nest allows it" if os.geteuid() else "--nest allows it, for an ordinary user and not for root"
    return f"{who}: refused a user namespace, for a sandbox of its own; {option}"
