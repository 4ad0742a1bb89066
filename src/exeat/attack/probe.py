"""The process that tries: `python -I .../exeat/attack/probe.py SCENE TOKENS`, outside for the control, and in the jail.

Each probe gets a child of its own, so that one that changes its namespaces, hangs or is killed disturbs no other. One
line of JSON per probe goes to standard output. This file is run by its path, because -I (no variables, no user's
packages) leaves Python without a way to find exeat when that is not installed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from exeat.attack.guest.routes import lead_out
from exeat.attack.model import Absent, Answer, Evidence, Probe, Scene, Stopped
from exeat.attack.moves import become_root_inside
from exeat.attack.probes import find
from exeat.jail import libc

_LIMIT_S = 12
_GUEST_LIMIT_S = 40  # it may be emulated
_NESTED = libc.CLONE_NEWNS | libc.CLONE_NEWIPC
_SIOCSIFFLAGS = 0x8914
# The call does not exist here, or not in this kernel: then there is nothing to attack.
_ABSENT = {
    errno.ENOSYS,
    errno.ENOPROTOOPT,
    errno.EPROTONOSUPPORT,
    errno.ESOCKTNOSUPPORT,
    errno.EAFNOSUPPORT,
    errno.EOPNOTSUPP,
}


def main(arguments: list[str]) -> int:
    scene = Scene.from_json(arguments[0])
    if scene.guest and os.geteuid() == 0:
        lead_out()
    for id_, token in json.loads(arguments[1]).items():
        print(_try(find(id_), replace(scene, token=token)).to_json(), flush=True)  # noqa: T201 - this is its output
    return 0


def _try(probe: Probe, scene: Scene) -> Answer:
    """Run one probe in a child, within a time limit."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        os.write(theirs, _attempt(probe, scene).to_json().encode())
        os._exit(0)
    os.close(theirs)
    text = b""
    limit_s = _GUEST_LIMIT_S if scene.guest else _LIMIT_S
    while select.select([ours], [], [], limit_s)[0]:
        part = os.read(ours, 65536)
        if not part:
            break
        text += part
    else:
        os.kill(child, signal.SIGKILL)
    os.close(ours)
    status = os.waitpid(child, 0)[1]
    if text:
        with contextlib.suppress(ValueError):
            return Answer.from_json(text.decode())
    if os.WIFSIGNALED(status):
        return Answer(probe.id, False, f"killed by signal {os.WTERMSIG(status)}")
    return Answer(probe.id, False, f"ended with status {os.waitstatus_to_exitcode(status)}")


def _attempt(probe: Probe, scene: Scene) -> Answer:
    try:
        if probe.scratch and scene.outside:
            _enter_scratch()
        if scene.nested:
            become_root_inside(_NESTED)  # in the jail's network, which is what to break out of
        said = probe.run(scene)
    except Absent as error:
        return Answer(probe.id, False, str(error), absent=True)
    except Stopped as error:
        return Answer(probe.id, False, str(error))
    except OSError as error:
        lacking = scene.outside and error.errno in _ABSENT
        return Answer(probe.id, False, str(error), absent=lacking, refused=isinstance(error, PermissionError))
    except Exception as error:  # whatever it is, it must reach the scorecard
        return Answer(probe.id, False, f"{type(error).__name__}: {error}", crashed=True)
    secret = said if probe.evidence is Evidence.SECRET else ""
    return Answer(probe.id, True, "read it" if secret else said, secret=secret)


def _enter_scratch() -> None:
    """Namespaces where this process has every capability, and where it can hurt nothing but itself."""
    try:
        become_root_inside(_NESTED | libc.CLONE_NEWNET)
    except OSError:
        raise Absent("no user namespaces for the control") from None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", 0x41))  # up and running


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
