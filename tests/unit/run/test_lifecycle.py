"""The steps of a run, whatever its jail; and which signals are passed on to the command."""

from __future__ import annotations

import signal
import socket
import sys
from types import ModuleType

import pytest

from exeat.errors import JailError
from exeat.jail.jail import Built, Company, Ended, Sockets, Spec
from exeat.jail.select import BODIES, Body
from exeat.run import lifecycle
from exeat.run.command_files import CommandFiles
from exeat.run.lifecycle import Finished, concerns_command
from exeat.run.outcome import UNKNOWN, Outcome
from exeat.run.settings import Preparations, RunSettings


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD])
@pytest.mark.parametrize("shares", [True, False])
def test_what_stops_is_not_passed_on_nor_what_is_ours(number: signal.Signals, shares: bool) -> None:
    assert not concerns_command(number, by_process=True, shares=shares, has_own=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_without_a_shared_terminal_everything_else_is(number: signal.Signals) -> None:
    for by_process in (True, False):
        assert concerns_command(number, by_process=by_process, shares=False, has_own=False)


def test_with_one_its_keys_are_not() -> None:
    assert not concerns_command(signal.SIGINT, by_process=False, shares=True, has_own=False)
    assert concerns_command(signal.SIGINT, by_process=True, shares=True, has_own=False)


def test_a_command_with_a_terminal_of_its_own_is_told_to_stop() -> None:
    assert concerns_command(signal.SIGTSTP, by_process=True, shares=False, has_own=True)
    assert not concerns_command(signal.SIGTTIN, by_process=True, shares=False, has_own=True)


class Recorder:
    """A jail and a gateway process that do nothing and note what is called; `fails` raises there."""

    asking = None

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self.fails = fails
        self.socket = socket.socket()

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fails:
            raise JailError(f"{call} failed")

    # The gateway process

    def prepare(self) -> Preparations:
        self.note("prepare")
        return Preparations()

    def serve(self, built: Built, *, jail: str) -> None:
        assert jail == "fake"
        self.note("serve")

    def begin_to_stop(self) -> None:
        self.note("begin to stop")

    def stop(self) -> Outcome:
        self.note("stop")
        return UNKNOWN

    def kill(self) -> None:
        self.note("kill")

    # The jail

    def build(self, spec: Spec) -> Built:
        assert spec.argv == ["true"]
        self.note("build")
        return Built(Sockets([], [], [], []))

    def release(self) -> None:
        self.note("release")

    def attend(self, company: Company) -> Ended:
        self.note("attend")
        return Ended(7)

    def end(self) -> None:
        self.note("end")

    def close(self) -> None:
        self.note("close")


class NoSignals:
    descriptor = -1

    def close(self) -> None:
        pass


def run_recorded(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> Finished:
    """A new kind of jail: a module, and a line among the bodies."""
    module = ModuleType("exeat.jail.bodies.fake")
    module.open_jail = lambda: recorder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(BODIES, "fake", Body("fake"))
    monkeypatch.setattr(lifecycle, "seal_imports", lambda: recorder.note("seal"))
    monkeypatch.setattr(lifecycle, "SignalSource", NoSignals)
    monkeypatch.setattr(lifecycle, "waiting_end", lambda: 0)
    try:
        return lifecycle.run_in_jail(RunSettings(["true"], jail="fake", quiet=True), recorder)  # type: ignore[arg-type]
    finally:
        recorder.socket.close()


STEPS = ["prepare", "build", "serve", "seal", "release", "attend"]


def test_the_steps_of_every_run_are_the_same_and_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    assert run_recorded(monkeypatch, recorder).status == 7
    assert recorder.calls == [*STEPS, "begin to stop", "stop", "end", "kill", "close"]


@pytest.mark.parametrize("step", STEPS[1:])
def test_whatever_fails_the_jail_is_closed_and_nothing_follows(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(fails=step)
    with pytest.raises(JailError, match=f"{step} failed"):
        run_recorded(monkeypatch, recorder)
    done = STEPS[: STEPS.index(step) + 1]
    assert recorder.calls[: len(done)] == done
    left = recorder.calls[len(done) :]
    assert left[0] == ("close" if step == "build" else "end"), "the command is ended before all else"
    assert left[-2:] == (["close", "kill"] if step == "build" else ["kill", "close"])
    assert set(left) <= {"end", "kill", "close"}


def test_a_jail_that_cannot_be_taken_down_does_not_keep_the_files_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its folders may lie what must not stay there."""
    closed: list[str] = []
    monkeypatch.setattr(CommandFiles, "close", lambda self: closed.append("files"))
    with pytest.raises(JailError, match="close failed"):
        run_recorded(monkeypatch, Recorder(fails="close"))
    assert closed == ["files"]


def test_rules_that_cannot_be_used_build_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(fails="prepare")
    with pytest.raises(JailError):
        run_recorded(monkeypatch, recorder)
    assert recorder.calls == ["prepare"]
