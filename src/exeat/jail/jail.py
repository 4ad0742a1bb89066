"""What every jail is: a place for a command whose only way to a network is the sockets that come out of it.

A body (`exeat.jail.bodies`) is one way to make such a place. `exeat run` knows no more of it than is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from exeat.values import Value

if TYPE_CHECKING:
    import socket

    from exeat.jail.container.options import ContainerOptions, Mount
    from exeat.jail.environment import Variables
    from exeat.jail.files.mounts import OwnTree, View
    from exeat.jail.messages import HostPorts
    from exeat.jail.vm.files.disk import GuestDisk
    from exeat.jail.vm.options import VmOptions
    from exeat.trust.unnamed_file import TrustFiles


class OwnTerminal(Value):
    """A terminal for the command, kept apart from its caller's by someone in between."""

    descriptor: int
    hidden: int  # the device number of the caller's, which the command must not reach by any name


class Spec(Value):
    """What to run and how: everything that is decided before the jail is built, whatever its body."""

    argv: list[str]
    cwd: str
    variables: Variables  # what the command's environment is made of
    has_terminal: bool = False  # without one, the command's signals are kept to itself
    terminal: OwnTerminal | None = None  # in the place of the caller's
    view: View | None = None  # of files, for a body that makes one
    hidden: tuple[str, ...] = ()  # exeat's own files and those to come, for a body that hides by path
    unix: tuple[str, ...] = ()  # sockets of the host that stay within reach
    to_host: tuple[HostPorts, ...] = ()  # loopback places that mean the host's, not the jail's own
    trust: TrustFiles | None = None  # certificates for the command
    is_late: bool = False  # the command is said when all stands, and `argv` and `variables` stand for it
    nest: bool = False  # may the command make user namespaces?
    container: ContainerOptions | None = None
    vm: VmOptions | None = None
    disk: GuestDisk | None = None  # of a virtual machine with an image
    mounts: tuple[Mount, ...] = ()  # for a body whose files are an image's
    folder: str = ""  # of the run among exeat's own, for files that such a body mounts
    memory: str = ""  # a folder for what is to be remembered of images


class Sockets(Value):
    """What the gateway needs to serve a jail. Addresses are the jail's, not the host's."""

    tcp: list[socket.socket]
    dns_udp: list[socket.socket]
    dns_tcp: list[socket.socket]
    dropped: list[socket.socket]  # news of packets that were dropped; empty where the kernel cannot tell

    def all(self) -> list[socket.socket]:
        return [*self.tcp, *self.dns_udp, *self.dns_tcp, *self.dropped]

    def close(self) -> None:
        for each in self.all():
            each.close()


class Built(Value):
    """What stands, for those who look after it. The sockets are the receiver's to close, and so are descriptors."""

    sockets: Sockets
    credentials: tuple[str, str] | None = None  # for those who come to the gateway as to a proxy
    init: int = 0  # process 1 of the jail, by its number out here; 0: there is none
    namespaces: tuple[int, ...] = ()  # ways back in, if there is something to be held
    layers: int = -1  # a descriptor of what the command's view is made of, if it has one
    tree: OwnTree | None = None  # which has folders of the command's once more


class Ended(Value):
    """`status` is an exit status as a shell counts it; `note` is for the user, if there is something to say."""

    status: int
    note: str = ""
    nesters: tuple[str, ...] = ()  # programs that were refused a user namespace


class Company(Protocol):
    """What goes on outside while the command runs. The code that attends to the jail handles it."""

    @property
    def watched(self) -> Mapping[int, Callable[[], bool]]:
        """Descriptors, and what to do when one is readable. False: it is not watched any more."""

    @property
    def signals(self) -> int:
        """Readable when `take_signals` has something."""

    @property
    def look_every_ms(self) -> float | None:
        """How often `why_end` wants to be asked; None: not by the clock."""

    def take_signals(self) -> list[int]:
        """Those that the command should have had and has not got by itself."""

    def why_end(self) -> str:
        """A sentence if the command has to be ended now."""

    def suspend(self) -> None:
        """The command has stopped, and so does the run. Comes back when it is told to go on."""

    def resume(self) -> None:
        """The command goes on."""


class Jail(Protocol):
    """One place for one command. Calls come in this order; `end` and `close` may come at any time, more than once."""

    def build(self, spec: Spec) -> Built:
        """Make the place. Nothing runs in it yet. Raises JailError or ConfigError."""

    def release(self) -> None:
        """Let the command start. To be called when its sockets are served."""

    def attend(self, company: Company) -> Ended:
        """Until the command has ended: signals in, exit status out."""

    def end(self) -> None:
        """End what runs in it. What holds it stands until `close`: something may still be served there."""

    def close(self) -> None:
        """End what still runs, and leave nothing behind."""


class Examination(Value):
    """Is this kind of jail available, and if not: why, and what would help."""

    ok: bool
    why: str
    fix: str = ""
