"""One vocabulary: no module spells a word on record by itself, and only the record room changes a record."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import exeat
from exeat.reasons import LISTABLE, POLICY_DENIALS, Ending, ProxyError, Reason, in_words

SOURCE = Path(exeat.__file__).parent
# Words of one part are common English, and mean something else elsewhere.
WORDS = {word for word in (*Reason, *Ending, *ProxyError) if "-" in word or "_" in word}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_bytes())


def test_no_module_spells_a_reason() -> None:
    # How the summary calls failures are words of its own, one of them the same as an ending.
    allowed = {("gateway/record/counters.py", Ending.BAD_RESPONSE)}
    found = {
        (name, node.value)
        for name, tree in modules()
        for node in ast.walk(tree)
        if name != "reasons.py" and isinstance(node, ast.Constant) and node.value in WORDS
    }
    assert found == allowed


def assigned(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from target.elts if isinstance(target, ast.Tuple) else [target]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            yield node.target


def is_of_a_record(target: ast.expr) -> bool:
    if not isinstance(target, ast.Attribute):
        return False
    owner = target.value
    return getattr(owner, "id", "") == "record" or getattr(owner, "attr", "") == "record"


def test_only_the_record_room_changes_records() -> None:
    found = {name for name, tree in modules() if any(map(is_of_a_record, assigned(tree)))}
    assert found == {"gateway/record/records.py"}


def test_what_one_more_rule_could_allow_is_a_denial_by_the_policy() -> None:
    assert LISTABLE < POLICY_DENIALS < set(Reason)


@pytest.mark.parametrize("reason", [*Reason, "made\x1b[31m-up"])
def test_words_are_fit_for_a_terminal(reason: str) -> None:
    assert in_words(reason).isprintable()
