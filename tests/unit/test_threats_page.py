"""docs/threats.md and the tests say the same: every row has tests, every mark has a row, and the files are right."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from exeat.attack.probes import GROUPS

_TESTS = Path(__file__).parents[1]
_PAGE = _TESTS.parent / "docs" / "threats.md"
_ROW = re.compile(r"\| (T-[A-Z]\d+) \| [^|]+ \| [^|]+ \| ([^|]+) \|")
_DECLARED = ("HostThreat", "RequestThreat", "TunnelThreat")
_PROBES = "threats/jail/test_probes.py"  # each of its cases carries the id of its probe


def _on_the_page() -> dict[str, set[str]]:
    rows = [_ROW.fullmatch(line) for line in _PAGE.read_text().splitlines() if line.startswith("| T-")]
    assert None not in rows, "a row is not `| id | attack | what happens | files |`"
    found = [(row[1], set(re.findall(r"`([^`]+)`", row[2]))) for row in rows if row]
    assert len(dict(found)) == len(found), "an id is there twice"
    return dict(found)


def _ids_in(path: Path) -> set[str]:
    """Of the marks on a module and on its tests, and of threats that are tried at every door.

    They are read, because to collect all tests takes a minute.
    """
    text = path.read_text()
    if "mark.threat(" not in text and "@at_every_door" not in text:
        return set()
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    marks = [argument for call in calls if ast.unparse(call.func) == "pytest.mark.threat" for argument in call.args]
    declared = [call.args[0] for call in calls if ast.unparse(call.func) in _DECLARED]
    return {ast.literal_eval(each) for each in (*marks, *declared)}


def _on_the_tests() -> dict[str, set[str]]:
    everywhere = [group for group in GROUPS.values() if not group.only]
    found: dict[str, set[str]] = {probe.threat: {_PROBES} for group in everywhere for probe in group.probes}
    for path in _TESTS.rglob("test_*.py"):
        for threat in _ids_in(path):
            found.setdefault(threat, set()).add(path.relative_to(_TESTS).as_posix())
    return found


def test_page_and_tests_agree() -> None:
    page, tests = _on_the_page(), _on_the_tests()
    assert sorted(page.keys() - tests.keys()) == [], "on the page, and on no test"
    assert sorted(tests.keys() - page.keys()) == [], "on a test, and not on the page"
    assert {threat: tests[threat] for threat, files in page.items() if files != tests[threat]} == {}, "tested there"


def test_every_file_of_threats_is_on_the_page() -> None:
    """Or it tests a threat that has no row. The one that is not there is the control of the probes."""
    named = set().union(*_on_the_page().values())
    files = {path.relative_to(_TESTS).as_posix() for path in (_TESTS / "threats").rglob("test_*.py")}
    assert sorted(files - named) == ["threats/jail/test_env.py"]


def test_a_mark_is_seen(tmp_path: Path) -> None:
    """The control: what is read of a file is what pytest would find on it."""
    file = tmp_path / "test_x.py"
    file.write_text(
        'pytestmark = [pytest.mark.threat("T-A1"), pytest.mark.slow]\n'
        '@pytest.mark.threat("T-B1", "T-B2")\ndef test_y():\n    """pytest.mark.threat("T-C1")"""\n'
        '@at_every_door(HostThreat("T-D1", "x", [], Verdict.BAD))\ndef test_z(trial):\n    pass\n'
    )
    assert _ids_in(file) == {"T-A1", "T-B1", "T-B2", "T-D1"}
