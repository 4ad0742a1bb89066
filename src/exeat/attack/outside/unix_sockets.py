"""Unix sockets outside, by all the kinds of names that one can have."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from functools import partial
from pathlib import Path

from exeat.attack.outside import addresses
from exeat.attack.outside.sinks import Sinks


def bind_unix(path: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A socket that every user may connect to."""
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        sock.bind(path)
        if not path.startswith("\0"):
            Path(path).chmod(0o777)
    except OSError:
        sock.close()
        raise
    return sock


def open_paths(sinks: Sinks, folder: Path, stack: contextlib.ExitStack) -> dict[str, str]:
    """Unix stream sockets, by all the kinds of names that one can have."""
    found: dict[str, str] = {}
    unique = f"{secrets.token_hex(4)}.sock"
    places = {
        "tmp": folder,
        "home": Path.home(),
        "cwd": Path.cwd(),
        "var": Path("/var/tmp"),  # noqa: S108 - a place where programs put sockets
        "shm": Path("/dev/shm"),  # noqa: S108
        "run": Path("/run"),
        "runtime": Path(os.environ.get("XDG_RUNTIME_DIR", "/nowhere")),
    }
    for key, place in places.items():
        with contextlib.suppress(OSError):
            path = place / f"{key}-{unique}"
            sinks.listen(f"unix {key}", bind_unix(str(path)))
            stack.callback(path.unlink, missing_ok=True)
            found[key] = str(path)
    # The kernel remembers the name as it was given to bind(), which is no path to it in any of these.
    before = Path.cwd()
    os.chdir(folder)
    try:
        sinks.listen("unix relative", bind_unix("relative.sock"))
    finally:
        os.chdir(before)
    found["relative"] = str(folder / "relative.sock")
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    sinks.listen("unix by descriptor", bind_unix(f"/proc/self/fd/{descriptor}/descriptor.sock"))
    os.close(descriptor)
    found["descriptor"] = str(folder / "descriptor.sock")
    sinks.listen("unix moved", bind_unix(str(folder / "before.sock")))
    (folder / "before.sock").rename(folder / "moved.sock")
    found["moved"] = str(folder / "moved.sock")
    sinks.listen("unix linked", bind_unix(str(folder / "first.sock")))
    os.link(folder / "first.sock", folder / "second.sock")
    (folder / "first.sock").unlink()
    found["linked"] = str(folder / "second.sock")
    for second in addresses.second_paths(found["tmp"])[:1]:
        found["second"] = second
    open_late(sinks, "late", folder, folder)
    return found


def open_late(sinks: Sinks, name: str, folder: Path, wishes: Path) -> None:
    """Sockets that are bound when the command already runs, and asks for one by a file in `wishes`."""

    def bind(path: Path) -> None:
        sinks.listen(f"unix {name}", bind_unix(str(path)))

    for run in ("control", "jailed"):
        sinks.wish(wishes / f"want-{name}-{run}", partial(bind, folder / f"{name}-{run}.sock"))


def open_abstract(sinks: Sinks) -> dict[str, str]:
    """Sockets without a file: only a network namespace keeps these apart."""
    found = {kind: f"\0exeat-attack-{kind}-{secrets.token_hex(6)}" for kind in ("stream", "dgram", "seqpacket")}
    with contextlib.suppress(OSError):
        sinks.listen("abstract stream", bind_unix(found["stream"]))
        sinks.receive("abstract dgram", bind_unix(found["dgram"], socket.SOCK_DGRAM))
        sinks.listen("abstract seqpacket", bind_unix(found["seqpacket"], socket.SOCK_SEQPACKET))
    return found
