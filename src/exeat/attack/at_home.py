"""Starts a command as the owner of the files would: `python -I at_home.py HOME COMMAND...`.

In the project, with HOME set, with no variable that says that the files are somewhere else, and with what a careless
caller leaves open: a key, a start file, the home. Run by its path, and so with the standard library only.
"""

from __future__ import annotations

import os
import sys

_PLACES = ("XDG_", "EXEAT_HOME", "GNUPGHOME", "AWS_", "KUBECONFIG", "DOCKER_", "NPM_CONFIG_", "NETRC", "CARGO_HOME")
_LEFT_OPEN = (
    (".ssh/id_ed25519", os.O_RDONLY),
    (".ssh/id_ed25519", os.O_PATH),
    (".config/starts.d/held", os.O_WRONLY | os.O_APPEND),
    ("", os.O_RDONLY | os.O_DIRECTORY),
)


def main(arguments: list[str]) -> None:
    home, *command = arguments
    os.chdir(f"{home}/project")
    for path, flags in _LEFT_OPEN:
        os.set_inheritable(os.open(f"{home}/{path}", flags), True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_PLACES)}
    os.execvpe(command[0], command, kept | {"HOME": home})  # noqa: S606 - the command is what this is for


if __name__ == "__main__":
    main(sys.argv[1:])
