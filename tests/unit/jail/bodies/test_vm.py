"""What a guest is told of the run's rules."""

from __future__ import annotations

import pytest

from exeat.jail.bodies.vm import forwarded_ports

LOOPBACK = bytes((127, 0, 0, 1))


def test_ports_of_this_machine_that_a_guest_reaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert forwarded_ports([(LOOPBACK, 5432, 5432), (LOOPBACK, 80, 81), (b"\0" * 15 + b"\1", 80, 80)], quiet=False) == (
        80,
        81,
        5432,
    )
    assert not capsys.readouterr().err


def test_of_more_than_the_agent_takes_single_ones_come_first_and_the_rest_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The agent refuses more of them, and with them the run."""
    ports = forwarded_ports([(LOOPBACK, 1000, 2000), (LOOPBACK, 5432, 5432)], quiet=False)
    assert ports == (*range(1000, 1063), 5432)
    assert "reaches 64 ports of this machine by its own 127.0.0.1, and 1002 are allowed" in capsys.readouterr().err
