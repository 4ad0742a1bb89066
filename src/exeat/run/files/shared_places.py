"""What is held in folders that the command shares with the machine: read-only, hidden, or kept where it is.

The same whatever shares them: mounts of a view, or those of a container.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from exeat.files.keys.hidden import OWN_FILES, HiddenPath
from exeat.files.keys.masking import build_mask
from exeat.jail.files.holding import Place, places_on_way
from exeat.jail.files.layering import is_private
from exeat.jail.files.mounts import View
from exeat.paths import full_path, is_below, links_on_way, up_from
from exeat.run.files.hidden_files import own_folders, working_directory
from exeat.run.files.own_code import OwnCode
from exeat.run.files.project_guard import guard_projects, note_on_repository
from exeat.run.settings import Plan


def protect(view: View, plan: Plan, home: str, also: Iterable[Place] = (), *, has_layer: bool = True) -> list[str]:
    """What must not be changed in folders that are shared for real. `also`: what the policy says. Returns notes."""
    code = OwnCode(home, working_directory())
    notes: list[str] = []
    if view.layers is not None:
        writable = [full_path(path, home) for path in plan.files.write]
        folders = [root for root in view.shared if os.path.isdir(root)]
        view.holdings, notes = guard_projects(folders, view.shared, writable, home)
        notes.append(note_on_repository(working_directory(), view.shared, has_layer=has_layer))
    settings = plan.settings
    image = settings.vm.image if settings.vm is not None else ""
    given = (*settings.upstream_ca, *([os.path.realpath(image)] if image else ()))
    own = [*code.read_only, *(path for path in given if os.path.isfile(path))]
    places = (
        *view.holdings.read_only,
        *(place for path in own for root in view.shared for place in places_on_way(root, os.path.abspath(path))),
        *also,
    )
    writable_places = (*view.holdings.still_writable, *in_shared(view.shared, code.still_writable))
    view.holdings = view.holdings._replace(read_only=tuple(dict.fromkeys(places)), still_writable=writable_places)
    return [note for note in notes if note]


def hide(view: View, hidden: list[HiddenPath], later: list[HiddenPath]) -> None:
    """Where there are layers, by a mask; where it is shared for real, by a cover. `later`: what is not there yet."""
    view.not_there = [entry.path for entry in hidden]
    covered = []
    for entry in hidden:
        keep = tuple(name for name in entry.keep if f"{entry.path}/{name}" not in view.not_there)
        covered += [place._replace(keep=keep) for place in in_shared(view.shared, [entry.path])]
    paths = {place.path for place in covered}
    # What lies in a folder that is covered is not there any more, so nothing can be put over it.
    outer = tuple(place for place in covered if paths.isdisjoint(up_from(os.path.dirname(place.path))))
    view.holdings = view.holdings._replace(hidden=outer)
    if view.layers is not None:
        masked = [entry for entry in hidden if entry.path not in paths and not is_private(entry.path)]

        def fill(mask: int, mark: str) -> list[str]:
            return build_mask(mask, [*masked, *later], opaque_xattr=mark)

        view.layers.fill_mask = fill


def hold_ways(view: View, own: Iterable[str]) -> None:
    """What decides about the command is found where it was named: a link on the way must not be turned."""
    ways = {name: on_way for name in own if (on_way := links_on_way(name))}
    links = dict.fromkeys(link for each in ways.values() for link in each)
    lasting = [place.path for place in in_shared(view.shared, map(os.path.realpath, own_folders()))]
    view.holdings = view.holdings._replace(
        pinned=(*view.holdings.pinned, *in_shared(view.shared, links)),
        followed=tuple(ways),
        lasting=tuple(path for path in lasting if os.path.isdir(path)),
    )


def own_paths(hidden: list[HiddenPath]) -> set[str]:
    return {entry.path for entry in hidden if entry.why == OWN_FILES}


def in_shared(shared: Iterable[str], paths: Iterable[str]) -> list[Place]:
    return [Place(root, path) for path in paths for root in shared if is_below(path, root)]
