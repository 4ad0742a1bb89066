"""What a sandbox keeps of files, as the page is told: the same as `exeat files diff`. Blocking; for threads."""

from __future__ import annotations

from typing import Final

from exeat.errors import ConfigError
from exeat.files.layers.comparing import Comparison
from exeat.files.layers.showing import NotShownError, rows_of, text_diff, totals
from exeat.sandbox.folder import open_sandbox

MAX_ROWS: Final = 1_000  # that are sent; the page says how many there are

Said = dict[str, object]


def list_files(sandbox: str) -> Said:
    """What the layers of a sandbox would change on this machine."""
    with open_sandbox(sandbox) as folder, Comparison(folder) as comparison:
        changes = comparison.changes()
        rows = rows_of(comparison.real, changes, every=False)
    return {
        "rows": [row._asdict() for row in rows[:MAX_ROWS]],
        "row_count": len(rows),
        "totals": totals(changes)._asdict(),
    }


def show_file(sandbox: str, path: str) -> Said:
    """How one of them differs. Only a path that is on the list can be looked at. Raises ConfigError."""
    with open_sandbox(sandbox) as folder, Comparison(folder) as comparison:
        for change in comparison.changes([path]):
            if change.path == path:
                try:
                    return {"lines": text_diff(comparison.real, change)}
                except NotShownError as error:
                    return {"lines": [], "why": str(error)}
    raise ConfigError("no change is kept there")
