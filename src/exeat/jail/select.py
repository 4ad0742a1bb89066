"""Which jail can be had here. A jail that was asked for and cannot be had is an error, never another jail."""

from __future__ import annotations

import os
import sys

from exeat.errors import JailError


class Examination:
    """Can this kind of jail be had, and if not: why, and what would help."""

    __slots__ = ("fix", "ok", "why")

    def __init__(self, ok: bool, why: str, fix: str = "") -> None:
        self.ok = ok
        self.why = why
        self.fix = fix


def examine(kind: str) -> Examination:
    """Find out by building one and starting nothing in it."""
    if kind == "env":
        return Examination(True, "variables only: not a boundary")
    if kind == "seatbelt":
        return _examine_seatbelt()
    if not sys.platform.startswith("linux"):
        return Examination(False, f"needs Linux, and this is {sys.platform}")
    if kind == "netns":
        return _examine_netns()
    from exeat.jail.net.nft import examine_nft  # noqa: PLC0415 - only where it is asked for

    return examine_nft()


def _examine_seatbelt() -> Examination:
    from exeat.jail.seatbelt import why_not  # noqa: PLC0415 - macOS only

    problem = why_not()
    if problem is not None:
        return Examination(False, f"{problem.public}: {problem.detail}", problem.fix)
    return Examination(True, "a Seatbelt profile: the gateway's port is all the network there is")


def _examine_netns() -> Examination:
    from exeat.jail.bodies.namespaces import NamespaceJail  # noqa: PLC0415
    from exeat.jail.files.layering import PRIVATE  # noqa: PLC0415
    from exeat.jail.files.mounts import View  # noqa: PLC0415
    from exeat.jail.files.mounttable import silent_mounts  # noqa: PLC0415
    from exeat.jail.files.view import Layers  # noqa: PLC0415
    from exeat.jail.process.builder import Spec  # noqa: PLC0415 - Linux only

    layers = Layers(limit=64 << 20)
    layers.is_trial = True
    view = View(layers)
    view.silent = silent_mounts(PRIVATE)
    jail = NamespaceJail(Spec([""], {}, "/", view, own_network=True))
    jail.start_building()
    try:
        sockets = jail.finish_building()
        if sockets is not None:
            sockets.close()
    except JailError as error:
        return Examination(False, f"{error.public}: {error.detail}" if error.detail else error.public, error.fix)
    jail.kill()
    how = "as root" if os.geteuid() == 0 else "as an ordinary user"
    return Examination(True, f"user, network, mount and PID namespaces, {how}")
