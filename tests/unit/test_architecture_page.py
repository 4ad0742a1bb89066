"""docs/architecture.md names every module, in the row of its room, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

_HOME = Path(__file__).parents[2]
_PAGE = (_HOME / "docs" / "architecture.md").read_text()
_SOURCE = _HOME / "src" / "exeat"


def _on_the_page() -> dict[str, set[str]]:
    rows = re.findall(r"^\| `([\w/]+)/` \| (.*) \|$", _PAGE, re.MULTILINE)
    return {room.removeprefix("exeat"): set(re.findall(r"`(\w+)`", text)) for room, text in rows}


def _in_the_source() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in _SOURCE.rglob("*.py"):
        if path.name != "__init__.py":
            room = path.parent.relative_to(_SOURCE).as_posix()
            found.setdefault("" if room == "." else room, set()).add(path.stem)
    return found


def test_every_module_is_in_the_row_of_its_room() -> None:
    page, source = _on_the_page(), _in_the_source()
    wrong = {room: page.get(room, set()) ^ source.get(room, set()) for room in page.keys() | source.keys()}
    assert {room: sorted(names) for room, names in wrong.items() if names} == {}


def test_every_path_that_is_named_is_there() -> None:
    """Paths are below src/exeat, or in the walks below src/exeat/gateway."""
    for page in ("architecture.md", "decisions.md"):
        named = re.findall(r"`((?:\w+/)*\w+\.py)`", (_HOME / "docs" / page).read_text())
        places = (_SOURCE, _SOURCE / "gateway", _SOURCE / "gateway" / "gates")
        assert [path for path in named if not any((place / path).exists() for place in places)] == [], page


def test_rooms_hold_what_a_reader_can_keep_in_mind() -> None:
    """About a dozen modules; a room with more wants rooms of its own."""
    assert {room: len(names) for room, names in _in_the_source().items() if len(names) > 17} == {}


def test_modules_can_be_read_in_one_go() -> None:
    lengths = {path.relative_to(_SOURCE).as_posix(): path.read_text().count("\n") for path in _SOURCE.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}
