"""Agents of the host that a jail hides, named when a command failed that may have wanted one.

That it tried cannot be seen: looking up a path and connecting to a socket that is not there leave no trace. So this
goes by what can be known: it failed, the agent is there outside, and it spoke to an SSH server or was to run docker.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence

_DOCKER_SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")
_DOCKER_WORDS = ("docker", "docker-compose")


def name_hidden_agents(
    environ: Mapping[str, str], kept: Collection[str], argv: Sequence[str], *, used_ssh: bool
) -> list[str]:
    """A line for each. `kept` are the sockets that were left reachable."""
    said = []
    agent = environ.get("SSH_AUTH_SOCK", "")
    if used_ssh and agent not in kept and _is_socket(agent):
        said.append(f"ssh-agent is hidden from the command; to leave it reachable: --unix {_printable(agent)}")
    if not any(_names_docker(word) for word in argv):
        return said
    named = environ.get("DOCKER_HOST", "")
    places = (named.removeprefix("unix://"),) if named.startswith("unix://") else () if named else _DOCKER_SOCKETS
    hidden = [place for place in places if _is_socket(place)]
    if hidden and not any(place in kept for place in places):
        said.append(
            "Docker's socket is hidden from the command, since whoever reaches it is root on the host; "
            f"to leave it reachable: --unix {_printable(hidden[0])}"
        )
    return said


def _names_docker(word: str) -> bool:
    """The program, or a part of a shell's command."""
    return any(os.path.basename(part) in _DOCKER_WORDS for part in word.split())


def _is_socket(path: str) -> bool:
    try:
        return bool(path) and stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
