"""After the command: its changes outside the shared folders are kept or dropped, and counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from exeat.errors import ExeatError
from exeat.files.layers.upper import Changes, Part, count_changes
from exeat.jail.files.trees import usual_modes
from exeat.jail.files.view import open_uppers

if TYPE_CHECKING:
    from exeat.files.layers.saving import Saved
    from exeat.run.settings import Plan
    from exeat.sandbox.folder import SandboxFolder

    SaveLayer = Callable[[SandboxFolder, Sequence[Part], int, Sequence[str], float], Saved]

_MAX_COUNTED = 100_000


class LayerEnd(NamedTuple):
    """What was changed, and a line about it for the user; "" if there is nothing to say."""

    changes: Changes = Changes()
    said: str = ""


def end_layer(held: int, plan: Plan, hidden: Sequence[str], began: float, save: SaveLayer | None) -> LayerEnd:
    """Count what is in the layers, and keep it if the sandbox has a name. `held` is closed here. Never raises.

    `save` was loaded for that before the command started: it takes 25 ms, and by now nothing can be loaded.
    """
    parts: list[Part] = []
    try:
        parts = open_uppers(held)
        changes = count_changes(parts, _MAX_COUNTED)
        settings = plan.settings
        if settings.folder is None or save is None:
            return LayerEnd(changes, _thrown_away(changes))
        with usual_modes():
            saved = save(settings.folder, parts, plan.files.layer_bytes, hidden, began)
        said = _kept(changes, settings.name) if saved.number else ""
        if saved.left_out_count:
            said += f"; {saved.left_out_count} could not be kept, such as {saved.left_out[0]}"
        return LayerEnd(changes, said)
    except ExeatError as error:
        return LayerEnd(said=error.public)
    except OSError as error:
        return LayerEnd(said=f"the changes outside the project cannot be read: {error.strerror}")
    finally:
        for _, descriptor in parts:
            with suppress(OSError):
                os.close(descriptor)
        os.close(held)


def _thrown_away(changes: Changes) -> str:
    if not changes.total and changes.is_complete:
        return ""
    return f"{_counted(changes)} outside the project; the changes are thrown away (--write PATH would keep them)"


def _kept(changes: Changes, name: str) -> str:
    return f"{_counted(changes)} outside the project; kept in the sandbox: exeat files diff --name {name}"


def _counted(changes: Changes) -> str:
    if not changes.total:
        return "the command made folders" if changes.is_complete else "the command made more folders than are counted"
    more = "" if changes.is_complete else "more than "
    files = "file" if changes.total == 1 else "files"
    return f"the command changed {more}{changes.total} {files}"
