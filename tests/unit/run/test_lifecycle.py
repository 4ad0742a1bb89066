"""Which signals are passed on to the command, and which it has got by itself."""

from __future__ import annotations

import signal

import pytest

from exeat.run.lifecycle import concerns_command


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
