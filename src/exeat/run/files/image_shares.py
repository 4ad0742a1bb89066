"""Folders and files of the machine for a command with an image: named paths, and the working directory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final

from exeat.errors import ConfigError
from exeat.files.homes import home_directories, why_not_shared
from exeat.files.keys.hidden import HiddenPath
from exeat.files.named_mounts import check_mounts, refuse_missing_points
from exeat.files.named_paths import RealPaths
from exeat.jail.container.options import Mount
from exeat.paths import full_path, is_in, outermost
from exeat.run.files.hidden_files import working_directory
from exeat.run.outcome import say
from exeat.run.settings import Plan

_OF_THE_JAIL: Final = ("/run",)


def choose_guest_mounts(
    plan: Plan, named: RealPaths, hidden: Sequence[HiddenPath], *, home: str, state: str
) -> tuple[Mount, ...]:
    """For a virtual machine. Its kernel connects to no socket of the machine's, not even an engine's."""
    settings, here = plan.settings, working_directory()
    mounts = settings.vm.mounts if settings.vm is not None else ()
    asked = check_mounts(mounts, hidden, home=home, state=state, engines=())
    for mount in asked:
        if is_in(mount.source, _OF_THE_JAIL):  # what is served is what QEMU's jail shows, and that has its own there
            raise ConfigError(
                f"{mount.source} is not in the jail that QEMU is in",
                where=f"--mount {mount.source}:{mount.target}",
                expected="another folder",
            )
    why = why_not_shared(here, home_directories(home, os.environ, os.geteuid()))
    shares = choose_shares(named, asked, () if why else (here,))
    refuse_missing_points(shares)
    refuse_to_show_elsewhere(plan.files.show, shares, home, "guest")
    if why and not is_in_sight(here, shares) and not settings.quiet:
        say(f"the working directory is {why}, so the guest does not have it; to share it: --write .")
    return tuple(shares)


def choose_shares(named: RealPaths, asked: Sequence[Mount], here: Iterable[str]) -> list[Mount]:
    """`asked` are mounts by `--mount`, `here` the working directory if it may be shared. Paths have no links."""
    at_own_path = {path: path in named.read_only for path in outermost((*named.write, *here))}
    at_own_path |= {path: True for path in named.read_only if not is_in(path, at_own_path)}
    return [*(Mount(path, path, read_only) for path, read_only in at_own_path.items()), *asked]


def is_in_sight(path: str, shares: Iterable[Mount]) -> bool:
    """Is it inside what it is outside, by the same path?"""
    return any(is_in(path, [share.source]) for share in shares if share.source == share.target)


def refuse_to_show_elsewhere(shown: Iterable[str], shares: Iterable[Mount], home: str, inside: str) -> None:
    """A key can be shown where its folder is shared, and is nowhere else. Raises ConfigError."""
    sources = [share.source for share in shares]
    for text in shown:
        if not is_in(os.path.realpath(full_path(text, home)), sources):
            expected = f"--mount {text}:PATH:ro as well"
            raise ConfigError(f"is not in the {inside}", where=f"--show {text}", expected=expected)
