"""State has an owner: what moves bytes is told by methods, and no other module assigns its fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.gateway.state import Place
from exeat.values import fields_of
from exeat.wire.http1 import RequestHead, ResponseHead

SOURCE = Path(__file__).parents[3] / "src" / "exeat"
GATEWAY = SOURCE / "gateway"
OWNERS = [*GATEWAY.glob("[fht]*/*.py"), GATEWAY / "gates" / "session.py", GATEWAY / "state.py"]
# Fields of the same name, of objects that belong to the module that assigns them.
NAMESAKES = {("synthetic.py", "live"), ("questions.py", "task"), ("frames.py", "state")}


def assigned(path: Path, *, of_self: bool) -> Iterator[str]:
    """The fields that a module assigns: those of `self`, or those of anything else."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if is_own == of_self:
                yield node.attr


def test_the_rooms_are_where_this_looks_for_them() -> None:
    assert {path.parent.name for path in OWNERS} == {"flow", "http2", "tls", "gates", "gateway"}
    fields = {name for path in OWNERS for name in assigned(path, of_self=True)}
    assert {
        "buffer",
        "eof",
        "transport",
        "_on_lost",
        "_producer",
        "note",
        "failure",
        "ended",
        "upstream",
        "answer",
    } <= fields


@pytest.mark.parametrize("owner", OWNERS, ids=lambda path: path.stem)
def test_nothing_assigns_the_fields_of_another_module(owner: Path) -> None:
    own = set(assigned(owner, of_self=True))
    others = [
        path for room in (GATEWAY, SOURCE / "serve") for path in room.rglob("*.py") if path.parent.name != "record"
    ]
    found = {(path.name, name) for path in others if path != owner for name in assigned(path, of_self=False)}
    assert {(path, name) for path, name in found if name in own} <= NAMESAKES


def test_places_and_heads_are_values() -> None:
    assert fields_of(Place)
    assert issubclass(RequestHead, tuple)
    assert issubclass(ResponseHead, tuple)
