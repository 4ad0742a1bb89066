"""`exeat` with one fault in one of its processes: `faults.py STEP HOW ORDER run ...`.

STEP is where it fails, or several of them for a control; HOW is `oserror`, `error`, `exit`, `kill`, or `none` for a
control. ORDER says who is first: `it`, the process that fails, before the run tells it anything; `run`, whose word has
come by then and is never read; or `any`.
"""

from __future__ import annotations

import errno
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

# Step -> the module and the name that is called there, in the process that is to fail.
BUILDER = {
    "builder-descriptors": ("exeat.jail.process.descriptors", "close_ways_out"),
    "builder-namespaces": ("exeat.jail.process.builder", "_enter_namespaces"),
    "builder-network": ("exeat.jail.process.builder", "build_network"),
    "builder-sockets": ("exeat.jail.process.builder", "find_sockets"),
    "builder-streams": ("exeat.jail.process.descriptors", "hold_read_only"),
    "builder-view": ("exeat.jail.files.mounts", "build_view"),
    "builder-doors": ("exeat.jail.files.kernelfs", "close_doors"),
    "builder-devices": ("exeat.jail.files.mounts", "OwnDevices"),
}
INIT = {
    "init-begins": ("exeat.jail.process.builder", "live_as_init"),
    "init-settles": ("exeat.jail.process.init", "_settle"),
    "init-signals": ("exeat.jail.process.init", "open_signalfd"),
    "init-waits": ("exeat.jail.process.builder", "live_as_init"),
    "init-goes": ("exeat.jail.process.init", "_is_gone"),
}
GATEWAY = {
    "gateway-begins": ("exeat.run.gateway_process.rules", "read_rules"),
    "gateway-rules": ("exeat.run.gateway_process.rules", "loopback_places"),
    "gateway-prepares": ("exeat.run.gateway_process.intercepting", "Authority"),
    "gateway-waits": ("exeat.run.gateway_process.serving", "_receive"),
    "gateway-limits": ("exeat.run.gateway_process.serving", "raise_descriptor_limit"),
    "gateway-resolver": ("exeat.run.gateway_process.serving", "load_system_resolver"),
}
_control: socket.socket | None = None  # of the process that is to fail


def _fail(how: str) -> None:
    match how:
        case "oserror":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        case "error":
            raise RuntimeError("a fault for a test")
        case "exit":
            os._exit(1)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_word() -> None:
    """Until the run has said something that will not be read."""
    if _control is not None:
        select.select([_control], [], [])


class _Control:
    """Init's control socket, which fails when it is read."""

    def __init__(self, real: socket.socket, fail: Callable[[], None]) -> None:
        self._real = real
        self._fail = fail

    def recv(self, *arguments: int) -> bytes:
        self._fail()
        return self._real.recv(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _put(place: tuple[str, str], made: Callable[[Any], Any]) -> None:
    module = importlib.import_module(place[0])
    setattr(module, place[1], made(getattr(module, place[1])))


def _remember_control(place: tuple[str, str]) -> None:
    def made(real: Any) -> Any:
        def call(first: Any, control: socket.socket, *others: Any, **named: Any) -> Any:
            global _control
            _control = control
            return real(first, control, *others, **named)

        return call

    _put(place, made)


def _await_child(get: Callable[[Any], int]) -> Callable[[Any], Any]:
    """For a method of the run's: a process of its own has to end first."""

    def made(real: Any) -> Any:
        def call(self: Any, *others: Any, **named: Any) -> Any:
            os.waitid(os.P_PID, get(self), os.WEXITED | os.WNOWAIT)
            return real(self, *others, **named)

        return call

    return made


def arrange(step: str, how: str, order: str) -> None:
    def fail() -> None:
        if order == "run" and how != "none":
            _wait_for_word()
        _fail(how)

    def faulty(real: Any) -> Any:
        def call(*others: Any, **named: Any) -> Any:
            fail()
            return real(*others, **named)

        return call

    def failing_when_read(real: Any) -> Any:
        return lambda spec, control, *others, **named: real(spec, _Control(control, fail), *others, **named)

    if step == "init-waits":
        _put(INIT[step], failing_when_read)
    else:
        _put((BUILDER | INIT | GATEWAY)[step], faulty)
    if step.startswith(("builder", "init")):
        _remember_control(("exeat.jail.bodies.namespaces", "build"))
    else:
        _remember_control(("exeat.run.gateway_process.process", "_live"))
    if order != "it" or how == "none":
        return
    jail = importlib.import_module("exeat.jail.bodies.namespaces").NamespaceJail
    gateway = importlib.import_module("exeat.run.gateway_process.process").GatewayProcess
    if step == "init-waits":
        jail.release = _await_child(lambda self: self._init)(jail.release)
    elif step == "gateway-waits":
        gateway.serve = _await_child(lambda self: self.pid)(gateway.serve)


if __name__ == "__main__":
    for each in sys.argv[1].split(","):
        arrange(each, *sys.argv[2:4])
    del sys.argv[1:4]
    importlib.import_module("exeat.cli.main").console()
