"""Changes one client of a gateway that runs in the same container, and says when that is in force.

    python3 -I -m exeat.serve.client_change set NAME TEXT
    python3 -I -m exeat.serve.client_change remove NAME

NAME is that of a file in the folder EXEAT_CLIENTS, without its ending, and TEXT is what is to be in it. Several may do
this at once. A client whose network is another's now is one of a network that is gone, and goes too.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from exeat.errors import ConfigError
from exeat.serve.client_files import list_files, load_clients
from exeat.serve.clients import Client, parse_clients
from exeat.serve.health import ask_admin
from exeat.sources import read_text

_GATEWAY: Final = 1  # the process that serves, in its container
_IN_FORCE_S: Final = 15.0
_LOOK_S: Final = 0.02


def put(folder: Path, name: str, text: str) -> dict[str, Client]:
    """Put the clients of a text in the place of those that a file has. Raises ConfigError, and then nothing changes."""
    new = parse_clients(text, f"{name}.json")
    file = folder / f"{name}.json"
    with _locked(folder):
        gone = [Path(path) for path in list_files(str(folder)) if Path(path) != file and _is_gone(path, new)]
        before = {path: path.read_bytes() for path in (file, *gone) if path.exists()}
        for path in gone:
            path.unlink()
        _write(file, text.encode())
        try:
            return load_clients(str(folder))
        except ConfigError:
            file.unlink()
            for path, content in before.items():
                _write(path, content)
            raise


def remove(folder: Path, name: str) -> dict[str, Client]:
    with _locked(folder):
        (folder / f"{name}.json").unlink(missing_ok=True)
        return load_clients(str(folder))


def _write(file: Path, content: bytes) -> None:
    draft = file.with_name(f".{file.name}.draft")  # never the lock, whatever the client is called
    draft.write_bytes(content)
    draft.replace(file)


def _is_gone(path: str, new: list[Client]) -> bool:
    """Engines give no address to two networks at a time, so the file is of one that was removed."""
    try:
        others = parse_clients(read_text(path, "clients"), path)
    except ConfigError:
        return False
    networks = [network for client in new for network in client.networks]
    return any(
        one.version == two.version and one.overlaps(two)
        for other in others
        for one in other.networks
        for two in networks
    )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def wait_until_in_force(wanted: dict[str, str], unwanted: set[str]) -> None:
    """Raises TimeoutError. What another process changes meanwhile is its own matter."""
    deadline = time.monotonic() + _IN_FORCE_S
    said = ""
    while time.monotonic() < deadline:
        try:
            found = json.loads(ask_admin(os.environ["EXEAT_ADMIN"], "/clients"))
            if wanted.items() <= found.items() and not unwanted & found.keys():
                return
            # Only now: what starts in a container is not the gateway yet, and such a signal would end it.
            os.kill(_GATEWAY, signal.SIGHUP)
        except (OSError, ValueError) as error:
            said = str(error)  # it is starting, perhaps
        time.sleep(_LOOK_S)
    raise TimeoutError(f"the gateway did not apply it within {_IN_FORCE_S:.0f} s; {said}")


def main(arguments: list[str]) -> int:
    folder = Path(os.environ["EXEAT_CLIENTS"])
    try:
        match arguments:
            case ["set", name, text]:
                now = put(folder, name, text)
                wanted = {each.name: now[each.name].digest for each in parse_clients(text, f"{name}.json")}
                wait_until_in_force(wanted, set())
            case ["remove", name]:
                wait_until_in_force({}, {name} - remove(folder, name).keys())
            case _:
                raise ConfigError("set NAME TEXT, or remove NAME")
    except (ConfigError, OSError) as error:
        print(f"exeat: {error}", file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
