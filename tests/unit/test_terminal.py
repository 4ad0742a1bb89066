"""The tests' own terminal: what a test reads there does not depend on who is faster."""

from __future__ import annotations

import os
import time

import pytest

from tests.support.clients.terminal import Terminal
from tests.support.runs.running import environment


def test_all_that_a_job_wrote_is_seen_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.read

    def read_late(descriptor: int, length: int) -> bytes:
        data = read(descriptor, length)
        time.sleep(0.05)
        return data

    monkeypatch.setattr(os, "read", read_late)
    with Terminal(environment(TERM="dumb")) as terminal:
        for number in range(3):
            assert terminal.wait(terminal.start(["echo", f"line {number}"])) == ("exited", 0)
            assert terminal.text == "".join(f"line {each}\n" for each in range(number + 1))
