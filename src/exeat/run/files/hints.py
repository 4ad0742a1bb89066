"""Hidden files and agents that a failed command may have wanted.

That a program looked for a file, or for a socket, which is not there leaves no trace, and to watch for it would slow
everything down. So this goes by what can be known: it failed, and it is one of the programs that use what is hidden, or
spoke to an SSH server, or was to run docker while that is there outside.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from exeat.paths import is_socket, printable
from exeat.run.outcome import shell_word

if TYPE_CHECKING:
    from exeat.files.keys.hidden import HiddenPath

_MOST_LINES = 3
_DOCKER_SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")
_DOCKER_WORDS = ("docker", "docker-compose")


def name_hidden_keys(hidden: Iterable[HiddenPath], argv: Sequence[str]) -> list[str]:
    """A line for each of the first few."""
    words = {part.rpartition("/")[2] for word in argv for part in word.split()}
    missed = [entry for entry in hidden if any(words.issuperset(use.split(" ")) for use in entry.used_by)]
    paths = ((printable(entry.path), entry.why) for entry in missed[:_MOST_LINES])
    return [f"{path} is hidden from the command ({why}); to show it: --show {shell_word(path)}" for path, why in paths]


def name_hidden_agents(
    environ: Mapping[str, str], kept: Collection[str], argv: Sequence[str], *, used_ssh: bool
) -> list[str]:
    """A line for each. `kept` are the sockets that were left reachable."""
    said = []
    agent = environ.get("SSH_AUTH_SOCK", "")
    if used_ssh and agent not in kept and is_socket(agent):
        said.append(f"ssh-agent is hidden from the command; to leave it reachable: --unix {printable(agent)}")
    if not any(_names_docker(word) for word in argv):
        return said
    named = environ.get("DOCKER_HOST", "")
    places = (named.removeprefix("unix://"),) if named.startswith("unix://") else () if named else _DOCKER_SOCKETS
    hidden = [place for place in places if is_socket(place)]
    if hidden and not any(place in kept for place in places):
        said.append(
            "Docker's socket is hidden from the command, since a program that reaches it is root on the host; "
            f"to leave it reachable: --unix {printable(hidden[0])}"
        )
    return said


def _names_docker(word: str) -> bool:
    """The program, or a part of a shell's command."""
    return any(os.path.basename(part) in _DOCKER_WORDS for part in word.split())
