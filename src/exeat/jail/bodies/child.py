"""Shared by the jails without namespaces (env, seatbelt): the command is a plain child, next to its gateway.

It is in our process group, so the terminal treats both as one job. Only if questions are asked on that terminal, the
command gets one of its own. Any POSIX system.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Mapping
from typing import NoReturn

from exeat.errors import StartError
from exeat.jail.attending import attend, how_it_ended
from exeat.jail.jail import Built, Company, Ended, Sockets, Spec
from exeat.jail.messages import ExecFailed, Stopped, open_channel, receive, send
from exeat.jail.process.command import become, lead, places_of
from exeat.jail.signals import restore_signals
from exeat.trust.unnamed_file import TrustFiles

_BACKLOG = 4_096
_USER = "exeat"
_TRUST_NAMES = ("ca-bundle.pem", "ca.pem", "cacerts")


class ChildJail:
    news = -1  # SIGCHLD tells

    def __init__(self) -> None:
        self._trust: TrustFolder | None = None
        self._pid = 0
        self._not_started: ExecFailed | None = None

    def build(self, spec: Spec) -> Built:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
        listener.listen(_BACKLOG)
        port = listener.getsockname()[1]
        # Every user of the machine can connect to the port; only the command knows this.
        password = os.urandom(16).hex()
        inherited = spec.variables.inherited
        self._trust = TrustFolder(spec.trust)
        self._spec = spec
        self._environ = spec.variables.build(
            proxy_url=f"http://{_USER}:{password}@127.0.0.1:{port}",
            own_loopback=False,
            kept_sockets=inherited.values(),  # no socket is hidden, so their names stay
            trust=self._trust.variables(inherited),
        )
        self._argv = self.wrap(spec, port)
        self._paths = places_of(self._argv[0], self._environ)
        return Built(Sockets([listener], [], [], []), (_USER, password))

    def wrap(self, spec: Spec, port: int) -> list[str]:
        """The command line to run, for a gateway on that port."""
        return spec.argv

    def give_up(self, number: int) -> None:
        """It is known before that there is no such program, or that it cannot be run."""
        self._not_started = ExecFailed(number, os.strerror(number))

    def release(self) -> None:
        if self._not_started is not None:
            return
        ours, theirs = open_channel()
        self._pid = os.fork()
        if self._pid == 0:
            self._live(theirs)
        theirs.close()
        with ours:
            message, _ = receive(ours)  # nothing, when the command has taken over
        if isinstance(message, ExecFailed):
            self._not_started = message
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _live(self, control: socket.socket) -> NoReturn:
        if self._spec.terminal is not None:
            lead(lambda: self._become(control), self._spec.terminal.descriptor)
        self._become(control)

    def _become(self, control: socket.socket) -> NoReturn:
        try:
            restore_signals()
            become(self._paths, self._argv, self._environ)
        except OSError as error:
            send(control, ExecFailed(error.errno or errno.EIO, error.strerror or ""))
        except BaseException:
            send(control, ExecFailed(errno.EINVAL, os.strerror(errno.EINVAL)))
        finally:
            os._exit(127)

    def attend(self, company: Company) -> Ended:
        if self._not_started is not None:
            return how_it_ended(self._spec.argv[0], 0, self._not_started)
        return attend(self, company)

    def pass_signal(self, number: int) -> None:
        if self._pid:
            os.kill(self._pid, number)  # not reaped yet, so the number is still the command's

    def receive(self) -> Stopped | Ended | None:
        changed, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
        if not changed:
            return None
        if os.WIFSTOPPED(status):
            return Stopped(os.WSTOPSIG(status))
        self._pid = 0
        return how_it_ended(self._spec.argv[0], status, None)

    def end(self) -> None:
        if self._pid:
            try:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
            self._pid = 0

    def close(self) -> None:
        self.end()
        if self._trust is not None:
            self._trust.remove()
            self._trust = None


class TrustFolder:
    """The certificates that a command is to trust, as files: where nothing can be mounted.

    A folder of its own among temporary files, gone when the run is over. Certificates are public.
    """

    def __init__(self, trust: TrustFiles | None) -> None:
        """Raises StartError if it cannot be made, and then there is none."""
        self._path = ""
        if trust is None:
            return
        try:
            self._fill(trust)
        except OSError as error:
            self.remove()
            raise StartError(
                f"the certificates that the command is to trust cannot be written: {error.strerror}",
                detail="they go to a temporary folder; TMPDIR sets where",
            ) from None

    def _fill(self, trust: TrustFiles) -> None:
        import tempfile  # for runs that look into TLS

        self._path = tempfile.mkdtemp(prefix="exeat-")
        for name, descriptor in zip(_TRUST_NAMES, (trust.bundle, trust.own, trust.java), strict=True):
            with open(descriptor, "rb", closefd=False) as source, open(f"{self._path}/{name}", "xb") as target:
                source.seek(0)
                target.write(source.read())

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        if not self._path:
            return {}
        from exeat.trust.places import trust_variables

        bundle, own, java = (f"{self._path}/{name}" for name in _TRUST_NAMES)
        return trust_variables(bundle, java, inherited, own=own)

    def remove(self) -> None:
        """Files first; whatever else someone put there stays, and so does the folder then."""
        if not self._path:
            return
        for name in _TRUST_NAMES:
            try:
                os.unlink(f"{self._path}/{name}")
            except OSError:
                pass  # gone already
        try:
            os.rmdir(self._path)
        except OSError:
            pass
