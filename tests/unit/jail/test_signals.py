"""Signals as data, and put back as the caller left them. Each in a forked child."""

from __future__ import annotations

import os
import signal

from exeat.jail import signals
from exeat.jail.signals import SI_USER, open_signalfd, read_signalfd, remember_signals, restore_signals
from tests.support.jails.forked import attempt


def test_a_signal_is_read_with_its_sender() -> None:
    def check() -> None:
        descriptor = open_signalfd([signal.SIGUSR1, signal.SIGTERM])
        assert read_signalfd(descriptor) == []
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
        found = read_signalfd(descriptor)
        assert sorted(found) == sorted((number, SI_USER, os.getpid()) for number in (signal.SIGUSR1, signal.SIGTERM))
        assert read_signalfd(descriptor) == []
        assert not os.get_inheritable(descriptor)

    assert attempt(check) == "ok"


def test_a_childs_end_is_read_with_a_code_of_the_kernel() -> None:
    def check() -> None:
        descriptor = open_signalfd([signal.SIGCHLD])
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        ((number, code, sender),) = read_signalfd(descriptor)
        assert (number, sender) == (signal.SIGCHLD, child)
        assert code > SI_USER

    assert attempt(check) == "ok"


def test_every_signal_has_its_bit() -> None:
    def check() -> None:
        wanted = [number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)]
        descriptor = open_signalfd(wanted)
        for number in wanted:
            os.kill(os.getpid(), number)
        # SIGCONT takes back what stops, and what stops takes back SIGCONT.
        stopping = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT}
        seen = {number for number, _, _ in read_signalfd(descriptor)}
        assert set(wanted) - stopping <= seen

    assert attempt(check) == "ok"


def test_all_is_put_back_as_it_was_found() -> None:
    def check() -> None:
        signals._inherited.clear()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        remember_signals()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # ours, not the caller's
        open_signalfd([signal.SIGTERM, signal.SIGCHLD])
        restore_signals()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            assert signal.getsignal(number) is signal.SIG_DFL, number
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()

    assert attempt(check) == "ok"


def test_an_interpreters_own_choice_is_not_the_callers() -> None:
    def check() -> None:
        signals._inherited.clear()
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
        remember_signals()
        assert signal.SIGPIPE not in signals._inherited
        assert signal.SIGXFSZ not in signals._inherited

    assert attempt(check) == "ok"
