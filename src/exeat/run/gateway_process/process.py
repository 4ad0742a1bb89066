"""The gateway process of one run, as the runner sees it.

It is forked first of all and loads its code and the rules while the jail is being built, which takes longer than
anything else. It is ready before the command starts. If it dies, its sockets are gone, and with them every way out.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

from exeat.errors import ConfigError, ExeatError, StartError
from exeat.file_policy import FileSettings
from exeat.jail import messages
from exeat.run.gateway_process.scrubbing import ClosedMemory, scrub_environment
from exeat.run.outcome import UNKNOWN, Outcome
from exeat.run.settings import Preparations
from exeat.trust.unnamed_file import TrustFiles

if TYPE_CHECKING:
    from exeat.jail.jail import Built
    from exeat.run.settings import RunSettings

T = TypeVar("T")
_MAX_FILES = 3
_STOP_S = 10.0
_LEAVE_S = 1.0
_LOOK_S = 0.005


class GatewayProcess:
    """The runner's side of it: start it, hear what the rules say, hand over the sockets, stop it."""

    def __init__(self, settings: RunSettings) -> None:
        """Fork. To be called with one thread, and with the standard streams open."""
        ours, theirs = messages.open_channel()
        self._settings = settings
        self._is_prepared = False
        self._has_stopped = False
        self.asking, asked = _open_questions(settings)  # where it asks about what no rule lists, for the terminal
        self.can_ask = asked is not None or settings.folder is not None
        # Ctrl-C goes to the whole group. Until the new process has left it, that is for the run alone.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            if self.asking is not None:
                self.asking.close()
            _live(settings, theirs, asked, blocked)
        theirs.close()
        if asked is not None:
            asked.close()
        self.socket = ours
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def prepare(self) -> Preparations:
        """Wait until the rules are read and the secrets fetched. Raises ConfigError for what cannot be used.

        Where the command is not known yet there are no secrets: `take` fetches them.
        """
        with ClosedMemory():
            rules, _ = self._expect(messages.RulesRead)
            files = tuple(FileSettings._make(fields) for fields in rules.files)
            found = Preparations(rules.to_host, files, said=rules.said)
            if rules.looks_inside:
                trusted, (bundle, own, java) = self._expect(messages.Trusted)
                trust = TrustFiles(bundle, own, java, trusted.subject_hash)
                found = found.replace(hidden=trusted.hidden, trust=trust)
                if self._settings.late is None:
                    found = self._fetched(found, self._settings.environ)
        self._is_prepared = True
        return found

    def take(self, message: messages.Take, environs: Sequence[int], built: Built, jail: str) -> None:
        """A command is known that may be for this jail: have its environment, exeat's own, and sockets to serve."""
        messages.send(self.socket, message, environs)
        self._hand_over(built, jail)

    def begin_taken(self, found: Preparations, given: dict[bytes, bytes] | None, complaints: int) -> Preparations:
        """Once it is certain: have the secrets fetched, which is told with what was `found` before, and all served.

        What their commands complain of goes to `complaints`. `await_ready` is still to be called. Raises ConfigError.
        """
        with suppress(ConnectionError):  # it has ended, and may have said why
            messages.send(self.socket, messages.Word.STREAMS, [complaints])
        if found.trust is not None:
            found = self._fetched(found, given)
        return found

    def _fetched(self, found: Preparations, given: dict[bytes, bytes] | None) -> Preparations:
        """From here on this process no longer has what its variables held of secrets."""
        fetched, _ = self._expect(messages.Fetched)
        scrub_environment(fetched.dropped, given)
        return found.replace(placeholders=dict(fetched.placeholders), said=found.said + fetched.said)

    def serve(self, built: Built, *, jail: str) -> None:
        """Hand over the sockets and wait until it serves them, its log open. Raises ExeatError. They are its own."""
        self._hand_over(built, jail)
        self.await_ready()

    def _hand_over(self, built: Built, jail: str) -> None:
        sockets = built.sockets
        kinds = [
            kind
            for kind, group in (
                ("tcp", sockets.tcp), ("udp", sockets.dns_udp), ("dns", sockets.dns_tcp), ("log", sockets.dropped),
            )
            for _ in group
        ]  # fmt: skip
        user, password = built.credentials or ("", "")
        try:
            message = messages.Serve(jail, user, password, built.init, tuple(kinds))
            messages.send(self.socket, message, [each.fileno() for each in sockets.all()])
        except ConnectionError:
            pass  # it has ended, and may have said why
        finally:
            sockets.close()

    def await_ready(self) -> None:
        """Until it serves, its log open. Raises ExeatError."""
        if self._expect(messages.Word)[0] is not messages.Word.READY:
            raise StartError("the gateway ended before it started")

    def begin_to_stop(self) -> None:
        """There is no command any more. It settles what is under way while others clear up."""
        with suppress(OSError):  # it has died
            self.socket.shutdown(socket.SHUT_WR)

    def stop(self) -> Outcome:
        """End it. Returns what was blocked and what failed; nothing if it has died before."""
        self.begin_to_stop()
        outcome = UNKNOWN
        try:
            self.socket.settimeout(_STOP_S)
            outcome = Outcome(*self._expect(messages.Over)[0])
        except (OSError, ExeatError):
            pass
        # It takes a while to go, and what is left to do need not wait for that: `kill` does.
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._has_stopped = True
        return outcome

    def _expect(self, kind: type[T]) -> tuple[T, list[int]]:
        message, received = messages.receive(self.socket, _MAX_FILES)
        match message:
            case messages.BadRules(public, where, expected):
                raise ConfigError(public, where=where, expected=expected)
            case messages.NotStarted(public, detail):
                raise StartError(public, detail=detail)
            case _ if isinstance(message, kind):
                return message, received
        raise StartError("the gateway ended before it started")

    def kill(self) -> None:
        """End it without a word. May be called at any time, more than once."""
        self.socket.close()
        if self.pid:
            try:
                if not self._is_prepared:
                    self._ask_to_leave()
                os.kill(self.pid, signal.SIGKILL)
                # Of one that has said all, nothing is missing but its end. A program need not wait for that.
                is_over = self._has_stopped and self._settings.late is not None
                os.waitpid(self.pid, os.WNOHANG if is_over else 0)
            except (ProcessLookupError, ChildProcessError):
                pass
            self.pid = 0

    def _ask_to_leave(self) -> None:
        """It may be waiting for a secret's command, which has to end with it."""
        os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + _LEAVE_S
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
            time.sleep(_LOOK_S)


def _open_questions(settings: RunSettings) -> tuple[socket.socket | None, socket.socket | None]:
    """Both ends of the way from the gateway to the terminal, if there is one and it is to be asked there."""
    if settings.ask_fd >= 0:
        try:
            return None, socket.socket(fileno=settings.ask_fd)
        except OSError as error:
            raise ConfigError(
                f"not a socket: {error.strerror}", where=f"--ask-fd {settings.ask_fd}", expected="an open descriptor"
            ) from None
    if not (settings.ask and settings.ask_here):
        return None, None
    from exeat.run.asks.terminal import is_at_hand  # for those who ask

    return messages.open_channel() if is_at_hand() else (None, None)


def _live(
    settings: RunSettings, control: socket.socket, asked: socket.socket | None, blocked: Iterable[int]
) -> NoReturn:
    """The gateway's process, from the fork on. `blocked` are the signals that were so before."""
    status = 1
    try:
        parent = os.getppid()
        os.setsid()  # signals of the terminal are for the command
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that waits is dropped by this
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is started yet; no exception in an import
        if sys.platform == "linux":  # elsewhere the end of the control socket is all there is
            from exeat.jail import libc  # Linux only

            libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)
        # 40 ms, in which the runner loads what it needs itself; then 80 ms, in which the jail is built.
        from exeat.run.gateway_process.rules import read_rules

        rules = read_rules(settings, control)
        from exeat.run.gateway_process.serving import serve_run

        signal.signal(signal.SIGTERM, _leave)
        serve_run(settings, rules, control, asked)
        status = 0
    except ConfigError as error:
        _tell(control, messages.BadRules(error.public, error.where, error.expected))
    except ExeatError as error:
        _tell(control, messages.NotStarted(error.public, error.detail))
    except BaseException as error:
        _tell(control, messages.NotStarted("the gateway could not start", f"{type(error).__name__}: {error}"))
    finally:
        os._exit(status)


def _leave(number: int, frame: object) -> NoReturn:
    """By way of every `finally`: what was started is ended."""
    raise SystemExit


def _tell(control: socket.socket, message: messages.Message) -> None:
    try:
        control.setblocking(True)
        messages.send(control, message)
    except OSError:
        pass  # no one is left to be told
