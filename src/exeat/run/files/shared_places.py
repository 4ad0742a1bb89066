"""Places in shared folders that are read-only, hidden, or must not be moved.

The same whatever shares them: mounts of a view, or those of a container.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from exeat.files.keys.hidden import OWN_FILES, HiddenPath
from exeat.files.keys.masking import build_mask
from exeat.jail.files.holding import Holdings, Place, places_on_way
from exeat.jail.files.layering import Fill, is_private
from exeat.paths import full_path, is_below, links_on_way, up_from
from exeat.run.files.hidden_files import own_folders, working_directory
from exeat.run.files.own_code import OwnCode
from exeat.run.files.project_guard import guard_projects, note_on_repository
from exeat.run.settings import Plan


def protect(
    shared: Sequence[str],
    plan: Plan,
    home: str,
    also: Iterable[Place] = (),
    *,
    confines: bool = True,
    has_layer: bool = True,
) -> tuple[Holdings, list[str]]:
    """What must not be changed in folders that are shared for real, and notes on it.

    `also`: what the policy says. `confines`: the command has not all files of the machine.
    """
    code = OwnCode(home, working_directory())
    holdings, notes = Holdings(), list[str]()
    if confines:
        writable = [full_path(path, home) for path in plan.files.write]
        holdings, notes = guard_projects([root for root in shared if os.path.isdir(root)], shared, writable, home)
        notes.append(note_on_repository(working_directory(), shared, has_layer=has_layer))
    settings = plan.settings
    image = settings.vm.image if settings.vm is not None else ""
    given = (*settings.upstream_ca, *([os.path.realpath(image)] if image else ()))
    own = [*code.read_only, *(path for path in given if os.path.isfile(path))]
    places = (
        *holdings.read_only,
        *(place for path in own for root in shared for place in places_on_way(root, os.path.abspath(path))),
        *also,
    )
    writable_places = (*holdings.still_writable, *in_shared(shared, code.still_writable))
    holdings = holdings._replace(read_only=tuple(dict.fromkeys(places)), still_writable=writable_places)
    return holdings, [note for note in notes if note]


def hide(holdings: Holdings, shared: Sequence[str], hidden: list[HiddenPath]) -> Holdings:
    """Where a folder is shared for real, things are hidden by covers."""
    not_there = {entry.path for entry in hidden}
    covered = []
    for entry in hidden:
        keep = tuple(name for name in entry.keep if f"{entry.path}/{name}" not in not_there)
        covered += [place._replace(keep=keep) for place in in_shared(shared, [entry.path])]
    paths = {place.path for place in covered}
    # What lies in a folder that is covered is not there any more, so nothing can be put over it.
    outer = tuple(place for place in covered if paths.isdisjoint(up_from(os.path.dirname(place.path))))
    return holdings._replace(hidden=outer)


def mask_of(shared: Sequence[str], hidden: list[HiddenPath], later: list[HiddenPath]) -> Fill:
    """Where there are layers, things are hidden by a mask. `later`: what is not there yet."""
    masked = [entry for entry in hidden if not in_shared(shared, [entry.path]) and not is_private(entry.path)]

    def fill(mask: int, mark: str) -> list[str]:
        return build_mask(mask, [*masked, *later], opaque_xattr=mark)

    return fill


def hold_ways(holdings: Holdings, shared: Sequence[str], own: Iterable[str]) -> Holdings:
    """What decides about the command is found where it was named: a link on the way must not be turned."""
    ways = {name: on_way for name in own if (on_way := links_on_way(name))}
    links = dict.fromkeys(link for each in ways.values() for link in each)
    lasting = [place.path for place in in_shared(shared, map(os.path.realpath, own_folders()))]
    return holdings._replace(
        pinned=(*holdings.pinned, *in_shared(shared, links)),
        followed=tuple(ways),
        lasting=tuple(path for path in lasting if os.path.isdir(path)),
    )


def own_paths(hidden: list[HiddenPath]) -> set[str]:
    return {entry.path for entry in hidden if entry.why == OWN_FILES}


def in_shared(shared: Iterable[str], paths: Iterable[str]) -> list[Place]:
    return [Place(root, path) for path in paths for root in shared if is_below(path, root)]
