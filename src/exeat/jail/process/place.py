"""The place that the builder makes and init uses, and how both report failures."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final, NoReturn

from exeat.jail.files.mounts import View
from exeat.jail.files.view import NoViewError
from exeat.jail.jail import Spec
from exeat.jail.limits.seccomp import Nesting
from exeat.jail.messages import Command, Message, failure, send
from exeat.jail.process.command import places_of

NESTED_PROGRAMS: Final = 2  # of ours, each with a user namespace of its own


class Place:
    """The run's wishes, and what its body has decided. `run_as`: uid and gid, where they are not the caller's.

    `life`: what the command's process does instead of becoming the command. It can tell the runner something.

    The caller gets a network of its own; another user's is the host's.
    """

    __slots__ = ("environ", "life", "nesting", "paths", "run_as", "spec", "view")

    def __init__(
        self,
        spec: Spec,
        environ: dict[str, str],
        run_as: tuple[int, int] | None = None,
        life: Callable[[Callable[[Message], None]], NoReturn] | None = None,
    ) -> None:
        assert spec.view is not None
        self.spec = spec
        self.view: View = spec.view
        self.environ = environ
        self.run_as = run_as
        self.paths = places_of(spec.argv[0], environ)
        self.life = life
        self.nesting = Nesting(allowed=spec.nest and life is None, programs=NESTED_PROGRAMS if life is not None else 0)

    def become(self, command: Command) -> None:
        """The place was built before its command was known."""
        self.spec = self.spec.replace(argv=list(command.argv))
        self.environ = dict(command.environ)
        self.paths = places_of(command.argv[0], self.environ)
        os.umask(command.umask)

    @property
    def own_network(self) -> bool:
        return self.run_as is None


class StepError(Exception):
    """What was done when the kernel refused."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(step)
        self.step = step
        self.error = error


class Step:
    """`with Step("mounts"):` what the kernel refuses in there is told by that name. `explain_failure` knows it."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, OSError):
            raise StepError("view" if isinstance(error, NoViewError) else self._name, error) from None


def report(control: socket.socket, what: str, problem: BaseException) -> None:
    """The last words. `what`: whose life it was, for what is no step of it."""
    if isinstance(problem, StepError):
        failed = failure(problem.step, problem.error)
    else:
        failed = failure(what, OSError(0, f"{type(problem).__name__}: {problem}"))
    try:
        send(control, failed)
    except OSError:
        pass  # no one is left to be told
