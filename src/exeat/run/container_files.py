"""The command's files in a container: those of its image, the working directory, and paths that the user named.

What is protected in folders that are shared for real is so here as well, by mounts that the engine makes. Where there
is a way into the container's mounts, what these do not hold is held from there, and held again when a program outside
replaces it. Without such a way that ends the run, and links are put back at the end.
"""

from __future__ import annotations

import os

from exeat.engine.find import every_socket
from exeat.errors import ConfigError, JailError
from exeat.files.homes import home_directories, why_not_shared
from exeat.files.named_mounts import check_mounts, refuse_missing_points, refuse_way_out
from exeat.files.named_paths import RealPaths, check_paths
from exeat.jail.container.mounted import refuse_other_mounts
from exeat.jail.container.options import ContainerOptions, Mount
from exeat.jail.files.holding import Place
from exeat.jail.files.layering import PRIVATE
from exeat.jail.files.mounts import BLANK, PINS, find_sockets
from exeat.jail.files.mounttable import silent_mounts
from exeat.jail.files.trees import usual_modes
from exeat.jail.jail import Built
from exeat.paths import root_of
from exeat.run.command_files import CommandFiles
from exeat.run.files.container_mounts import ContainerMounts, make_covers
from exeat.run.files.held_places import HeldPlaces
from exeat.run.files.hidden_files import (
    find_hidden,
    make_own_folders,
    own_files,
    refuse_second_names,
    user_home,
    working_directory,
)
from exeat.run.files.hints import name_hidden_keys
from exeat.run.files.image_shares import choose_shares, is_in_sight, refuse_to_show_elsewhere
from exeat.run.files.project_guard import ProjectGuard
from exeat.run.files.seen_files import check_sockets_and_devices, refuse_own_sockets, refuse_silent, state_folder
from exeat.run.files.shared_places import hide, hold_ways, own_paths, protect
from exeat.run.outcome import say
from exeat.run.settings import Plan
from exeat.sandbox.home import state_home
from exeat.sandbox.run_folder import RunFolder


def refuse_what_containers_lack(plan: Plan) -> None:
    """Raises ConfigError."""
    if plan.settings.devices:
        raise ConfigError("a container has devices of its own", where="--device", expected="a run without --container")
    for said in (*plan.settings.files, *plan.prepared.files):
        if said.mode == "host":
            raise ConfigError(
                "a container has the files of its image", where=said.named("mode"), expected="--mount SRC:DST"
            )
        if said.layer_bytes is not None:
            raise ConfigError(
                "a container has no layer: outside of what is mounted, only /tmp and home can be written, in memory",
                where=said.named("layer_size"),
                expected="--memory SIZE",
            )


class ContainerFiles(CommandFiles):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._guard: ProjectGuard | None = None
        self._copies: HeldPlaces | None = None
        try:
            self._folder = RunFolder()
        except OSError as error:
            raise JailError("there is no folder for the files that go into the container", detail=str(error)) from None
        self.folder, self.memory = self._folder.path, f"{state_home()}/images"
        try:
            with usual_modes():
                self._see()
        except BaseException:
            self._folder.remove()
            raise

    def _see(self) -> None:
        plan, settings = self.plan, self.plan.settings
        check_sockets_and_devices(settings)
        silent = silent_mounts(PRIVATE)
        named_mounts = settings.container.mounts if settings.container is not None else ()
        refuse_silent(silent, [working_directory(), *plan.files.write, *(mount.source for mount in named_mounts)])
        home, own = user_home(), own_files(plan)
        self._hidden = find_hidden(plan, own)
        refuse_own_sockets(settings.unix, self._hidden)
        named = check_paths(plan.files, self._hidden, home=home, here=working_directory(), state=state_folder())
        shares = self._choose_shares(named, home)
        written = [share.source for share in shares if not share.read_only]
        if make_own_folders(written):
            self._hidden = find_hidden(plan, own)
        roots = {share.source for share in shares}
        read_only = [Place(root_of(path, roots), path) for path in named.read_only if root_of(path, roots)]
        holdings, notes = protect(written, plan, home, read_only, has_layer=False)
        shared = [share.source for share in shares]
        self._holdings = hold_ways(hide(holdings, shared, self._hidden), shared, own)
        refuse_second_names(place.path for place in self._holdings.hidden if place.path in own_paths(self._hidden))
        refuse_to_show_elsewhere(plan.files.show, shares, home, "container")
        if not settings.quiet:
            for note in notes:
                say(note)
        sockets = [path for path in find_sockets(shared, silent) if path not in settings.unix]
        self._mounts = ContainerMounts(shares, self._holdings, sockets, make_covers(self._folder.path))
        self.mounts = (*self._mounts.made, *(Mount(os.path.realpath(path), path, True) for path in settings.unix))

    def _choose_shares(self, named: RealPaths, home: str) -> list[Mount]:
        """Folders and files of the machine. Raises ConfigError."""
        settings, here = self.plan.settings, working_directory()
        options = settings.container or ContainerOptions()
        engines = every_socket()
        for path in settings.unix:
            refuse_way_out(os.path.realpath(path), f"--unix {path}", map(os.path.realpath, engines))
        asked = check_mounts(options.mounts, self._hidden, home=home, state=state_folder(), engines=engines)
        why = why_not_shared(here, home_directories(home, os.environ, os.geteuid()))
        shares = choose_shares(named, asked, () if why else (here,))
        in_sight = is_in_sight(here, shares)
        self.cwd = here if in_sight else options.home
        if why and not in_sight and not settings.quiet:
            say(f"the working directory is {why}, so the container does not have it; to share it: --write .")
        refuse_missing_points(shares)
        return shares

    def begin(self, built: Built) -> None:
        if built.init:  # else no one here sees the container's processes
            refuse_other_mounts(built.init, self.mounts)
        holdings = self._holdings
        links = [(place.root, place.path) for place in self._mounts.links]
        if any(holdings):
            self._guard = ProjectGuard(holdings, built.namespaces, PINS, BLANK, self._mounts.inside)
            self.descriptor = self._guard.descriptor
            if built.namespaces and links:  # all else the engine's mounts hold
                self._guard.hold()
        else:
            for descriptor in built.namespaces:
                os.close(descriptor)
        places = [(place.root, place.path) for place in holdings.second_names]
        places += [] if built.namespaces else links
        self._copies = HeldPlaces(places) if places else None

    def attend(self) -> None:
        if self._guard is not None:
            self._guard.attend()

    def sweep(self) -> list[str]:
        lines = self._copies.put_back() if self._copies is not None else []
        return lines + (self._guard.sweep() if self._guard is not None else [])

    def hints(self) -> list[str]:
        """Of what is in the shared folders. All else is not in the container in the first place."""
        covered = {place.path for place in self._holdings.hidden}
        return name_hidden_keys((entry for entry in self._hidden if entry.path in covered), self.plan.settings.argv)

    def close(self) -> None:
        if self._guard is not None:
            self._guard.close()
        if self._copies is not None:
            self._copies.close()
        self._folder.remove()
