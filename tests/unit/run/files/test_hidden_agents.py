"""Agents that a jail hides are named when a command failed that may have wanted one, and only then."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.run.files.hints import name_hidden_agents


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent"))
        yield str(tmp_path / "agent")


def test_ssh_agent_is_named_to_those_who_spoke_ssh(agent: str) -> None:
    (line,) = name_hidden_agents({"SSH_AUTH_SOCK": agent}, (), ["git", "push"], used_ssh=True)
    assert line.endswith(f"--unix {agent}")
    assert name_hidden_agents({"SSH_AUTH_SOCK": agent}, (), ["git", "push"], used_ssh=False) == []
    assert name_hidden_agents({"SSH_AUTH_SOCK": agent}, (agent,), ["git", "push"], used_ssh=True) == []
    assert name_hidden_agents({"SSH_AUTH_SOCK": f"{agent}-gone"}, (), ["git", "push"], used_ssh=True) == []
    assert name_hidden_agents({}, (), ["git", "push"], used_ssh=True) == []


@pytest.mark.parametrize("argv", [["docker", "ps"], ["/usr/bin/docker", "ps"], ["sh", "-c", "cd /; docker ps"]])
def test_docker_is_named_to_those_who_run_it(argv: list[str], agent: str) -> None:
    given = {"DOCKER_HOST": f"unix://{agent}"}
    (line,) = name_hidden_agents(given, (), argv, used_ssh=False)
    assert f"--unix {agent}" in line
    assert name_hidden_agents(given, (agent,), argv, used_ssh=False) == []
    assert name_hidden_agents(given, (), ["make", "dockerfile"], used_ssh=False) == []
    assert name_hidden_agents({"DOCKER_HOST": "tcp://127.0.0.1:1"}, (), argv, used_ssh=False) == []


def test_a_path_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    odd = str(tmp_path / "a\x1b[2J")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(odd)
        (line,) = name_hidden_agents({"SSH_AUTH_SOCK": odd}, (), ["ssh"], used_ssh=True)
    assert line.isprintable()
