"""`exeat run --container` if exeat cannot enter the container's network: an engine on another machine.

The gateway is a container next to the command's, on two networks of this run; the command's network has no way out.
It is weaker than a jail: what does not use the proxy variables reaches nothing, and nothing is looked into.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Final

from exeat.container.gateway_image import PORT, ensure_gateway_image
from exeat.container.sidecar.attached import Attached, RawTerminal, Relay
from exeat.container.sidecar.far_policy import as_arguments, read_policy
from exeat.container.sidecar.far_record import FarRecord
from exeat.container.sidecar.networks import find_or_create
from exeat.container.sidecar.proxy import Proxy, hardened, join
from exeat.engine.client import Engine
from exeat.engine.errors import EngineError, NoWayError
from exeat.engine.find import open_engine
from exeat.engine.owner import labels, remove_left_networks, remove_left_over
from exeat.engine.removal import remove_container
from exeat.errors import ExeatError
from exeat.gateway.credentials import Credentials
from exeat.gateway.process import proxy_url
from exeat.jail.container.cell import CellSpec, creation
from exeat.jail.container.images import Image, find_image, hold_volumes
from exeat.jail.container.limits import check_limits
from exeat.jail.container.options import ContainerOptions
from exeat.jail.environment import Variables, inherited_environment
from exeat.jail.signals import SignalSource
from exeat.policy import Policy
from exeat.run.main import open_files, tell
from exeat.run.outcome import GATEWAY_GONE, UNKNOWN, as_json, print_summary, say
from exeat.run.settings import RunSettings

_READY_S: Final = 60.0
_STOP_S: Final = 10
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WITH_INPUT: Final = dict.fromkeys(("AttachStdin", "AttachStdout", "AttachStderr", "OpenStdin", "StdinOnce"), True)


def run_far(settings: RunSettings, no_way: NoWayError, *, has_secrets: bool) -> int:
    """The exit status for our own process. Raises ExeatError; ConfigError for what this way does not have."""
    policy = read_policy(settings, has_secrets=has_secrets)
    say(f"{no_way.public}: {no_way.detail}")
    say("so the gateway runs next to the command, as a sidecar on an internal network. This relies on proxy variables:")
    say("programs that do not use them reach nothing. No files of this machine are there, not even the project.")
    _, summary = open_files(settings)
    try:
        with ExitStack() as stack:
            record = FarRecord(settings.audit, settings.audit_rotation)
            stack.callback(record.close)
            _let_signals_end_this()
            try:
                status = _FarRun(settings, policy, record, stack).run()
            except OSError as error:  # the record cannot be written, for example
                raise ExeatError("the run failed", detail=f"{type(error).__name__}: {error}") from None
        outcome = record.outcome(policy)
        if (outcome.denied or outcome.failed) and not settings.quiet:
            print_summary(outcome)
        tell(settings, summary, as_json(outcome, status))
        return status
    except ExeatError as error:
        tell(settings, summary, as_json(UNKNOWN, None, str(error)))
        raise
    finally:
        if summary is not None:
            summary.discard()


def _let_signals_end_this() -> None:
    """While things are being made. An attempt at the usual jail has left signals blocked."""

    def end(number: int, _: object) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # nothing interrupts the removal
        raise SystemExit(128 + number)

    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Until the engine has answered. It goes on for a caller that has left, and nothing would remove what it makes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _FarRun:
    """Two networks, two containers. `stack` removes each of them, in the order in which an engine lets go of them."""

    def __init__(self, settings: RunSettings, policy: Policy, record: FarRecord, stack: ExitStack) -> None:
        self._settings, self._policy, self._record, self._stack = settings, policy, record, stack
        self._options = settings.container or ContainerOptions()
        self._engine = open_engine(self._options.engine)
        self._token = secrets.token_hex(16)
        self._has_terminal = os.isatty(0) and os.isatty(1)

    def run(self) -> int:
        remove_left_over(self._engine)
        remove_left_networks(self._engine)
        if told := check_limits(self._engine, self._options):
            say(told)
        image = find_image(self._engine, self._options.image, say)
        gateway = ensure_gateway_image(self._engine, progress=_show)
        inside, outside = (self._make_network(each) for each in ("inside", "outside"))
        sidecar, log = self._start_sidecar(gateway, outside)
        with _signals_wait():
            address = join(self._engine, sidecar, inside)
        proxy = Proxy(address, inside)
        container = self._make(self._command_body(image, proxy))
        command = Attached(self._engine, container, stdin=True, is_terminal=self._has_terminal)
        self._stack.callback(command.close)
        signals = SignalSource()  # from here on they are the command's, and nothing interrupts the removal
        self._stack.callback(signals.close)
        self._engine.call("POST", f"/containers/{container}/start")
        relay = Relay(self._engine, container, command, log, signals)
        with RawTerminal(self._engine, container) if self._has_terminal else nullcontext():
            state = relay.run(self._take_log)
        self._finish_log(sidecar, log)
        if state.get("OOMKilled"):
            say("the container ran out of memory and was killed (--memory)")
        return int(state["ExitCode"])

    def _make_network(self, what: str) -> str:
        name = f"exeat-run-{self._token[:12]}-{what}"
        self._stack.callback(_remove_network, self._engine, name)
        with _signals_wait():
            find_or_create(self._engine, name, is_internal=what == "inside", marks=labels("network"))
        return name

    def _make(self, body: dict[str, Any]) -> str:
        name = f"exeat-run-{self._token[:12]}-{body['Labels']['exeat.kind']}"
        self._stack.callback(remove_container, self._engine, name)
        with _signals_wait():
            return str(self._engine.call("POST", "/containers/create", query={"name": name}, body=body)["Id"])

    def _start_sidecar(self, image: str, outside: str) -> tuple[str, Attached]:
        """It listens when this returns. Raises EngineError."""
        sidecar = self._make(
            {
                "Image": image,
                "Labels": labels("sidecar"),
                # It ends when its input does: with this process, however that ends.
                "Entrypoint": ["python3", "-I", "-m", "exeat.cli.container.held"],
                "Cmd": ["serve", *as_arguments(self._policy)],
                # Others on the engine's machine can connect to it.
                "Env": [f"EXEAT_PROXY_AUTH=exeat:{self._token}", "EXEAT_SANDBOX="],
                "HostConfig": {**hardened(outside), "LogConfig": {"Type": "none"}},
                **_WITH_INPUT,
            }
        )
        log = Attached(self._engine, sidecar, stdin=True)
        self._stack.callback(log.close)
        with _signals_wait():
            self._engine.call("POST", f"/containers/{sidecar}/start")
        deadline = time.monotonic() + _READY_S
        while not self._record.is_listening:
            readable = select.select([log.connection], [], [], max(0.0, deadline - time.monotonic()))[0]
            pieces = log.read() if readable else None
            if pieces is None:
                raise EngineError("the sidecar does not start", detail=self._record.said[-1_000:].strip())
            self._record.feed(pieces)
        return sidecar, log

    def _command_body(self, image: Image, proxy: Proxy) -> dict[str, Any]:
        settings, options = self._settings, self._options
        inherited = inherited_environment(settings.environ)
        url = proxy_url(proxy.address, PORT, Credentials("exeat", self._token))
        variables = Variables(inherited, settings.env, settings.clean_env, passes_on=False)
        environ = variables.build(proxy_url=url, own_loopback=True)
        environ.setdefault("HOME", options.home)
        if self._has_terminal:
            environ.setdefault("TERM", inherited.get("TERM") or "xterm")
        user = options.user or f"{os.geteuid()}:{os.getegid()}"
        limits = (options.memory, options.cpus, options.pids)
        spec = CellSpec(image.id, settings.argv, environ, options.home, user, options.home, (), *limits)
        body = creation(spec, "", is_podman=self._engine.kind == "podman", keep_id=False)
        body |= {"Entrypoint": settings.argv[:1], "Cmd": settings.argv[1:], "Tty": self._has_terminal}
        body |= _WITH_INPUT
        hold_volumes(body["HostConfig"], image.volumes, ())
        # Its exit status is asked for when it has ended. The engine's own init: process 1 would get no signals.
        body["HostConfig"] |= {**proxy.host_config, "AutoRemove": False, "Init": True}
        return body

    def _take_log(self, pieces: list[tuple[int, bytes]] | None) -> None:
        if pieces is None:
            say(GATEWAY_GONE)
        else:
            self._record.feed(pieces)

    def _finish_log(self, sidecar: str, log: Attached) -> None:
        """Its last lines come when it ends."""
        try:
            self._engine.call("POST", f"/containers/{sidecar}/stop", query={"t": _STOP_S})
        except EngineError as error:
            say(f"the end of the record may be missing: {error.public}")
            return
        while (pieces := log.read()) is not None:
            self._record.feed(pieces)


def _show(text: str) -> None:
    """What takes long, for a person who waits."""
    if text.startswith("pull"):
        say(text)
    elif text.lower().startswith("step 1/"):
        say("building the gateway image at the engine, once for each version of exeat ...")


def _remove_network(engine: Engine, name: str) -> None:
    try:
        engine.call("DELETE", f"/networks/{name}")
    except EngineError:
        pass  # it was not made; or the next run removes it
