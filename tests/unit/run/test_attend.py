"""Which signals are passed on to the command, and which it has got by itself."""

from __future__ import annotations

import signal

import pytest

from exeat.jail.signals import SI_USER
from exeat.run.jails.confined import _concerns_command

KERNEL = 0x80


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU])
@pytest.mark.parametrize("has_terminal", [True, False])
def test_what_stops_is_never_passed_on(number: signal.Signals, has_terminal: bool) -> None:
    assert not _concerns_command(number, SI_USER, has_terminal=has_terminal)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_without_a_terminal_everything_else_is(number: signal.Signals) -> None:
    for code in (SI_USER, KERNEL):
        assert _concerns_command(number, code, has_terminal=False)


def test_with_a_terminal_its_keys_are_not() -> None:
    assert not _concerns_command(signal.SIGINT, KERNEL, has_terminal=True)
    assert _concerns_command(signal.SIGINT, SI_USER, has_terminal=True)
