"""Values of the start-up path behave as frozen dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from exeat.values import Value, field, fields_of, frozen, replace


class Point(Value):
    x: int
    y: int = 0


class Other(Value):
    x: int
    y: int = 0


def test_fields_by_place_and_by_name() -> None:
    assert Point(1, 2) == Point(x=1, y=2) == Point(1, y=2)
    assert Point(1) == Point(1, 0) != Point(1, 1)
    assert tuple(Point(1, 2)) == (1, 2)
    assert Point(1, 2).as_dict() == {"x": 1, "y": 2}
    assert repr(Point(1)) == "Point(x=1, y=0)"


def test_another_kind_is_not_equal_whatever_is_in_it() -> None:
    assert Point(1, 2) != Other(1, 2)
    assert len({Point(1, 2), Other(1, 2), Point(1, 2)}) == 2


def test_it_does_not_change() -> None:
    point = Point(1)
    with pytest.raises(AttributeError):
        point.x = 2  # type: ignore[misc]
    assert point.replace(y=3) == Point(1, 3)
    assert point == Point(1)


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((), {"y": 1}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"z": 1})]
)
def test_other_fields_are_an_error(values: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="Point has other fields: x, y"):
        Point(*values, **named)


def test_a_pattern_takes_it_apart() -> None:
    match Point(1, 2):
        case Point(x, y=2):
            assert x == 1
        case _:
            pytest.fail("it does not match")


def test_it_loads_nothing_that_takes_long() -> None:
    program = "import sys, exeat.values; print({'dataclasses', 'inspect'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "set()\n"
    )


# What a class says, once for `@frozen` and once for the dataclass that it stands for.
def _box(decorate: Callable[..., Any], field_of: Callable[..., Any]) -> Any:
    class Box:
        width: int
        height: int = 2
        labels: list[str] = field_of(default_factory=list, compare=False)
        secret: str = field_of(default="", repr=False)
        area: int = field_of(init=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "area", self.width * self.height)

        def __len__(self) -> int:
            return self.area

    return decorate(Box)


FrozenBox = _box(frozen, field)
DataBox = _box(dataclasses.dataclass(frozen=True, slots=True), dataclasses.field)
_GIVEN: list[tuple[tuple[object, ...], dict[str, object]]] = [
    ((1,), {}), ((1, 3), {}), ((), {"width": 4, "secret": "s"}), ((1, 2, ["a"], "s"), {}),
]  # fmt: skip


@pytest.mark.parametrize(("values", "named"), _GIVEN)
def test_a_frozen_class_is_like_a_dataclass(values: tuple[object, ...], named: dict[str, object]) -> None:
    one, other = FrozenBox(*values, **named), DataBox(*values, **named)
    assert repr(one) == repr(other)
    for name in ("width", "height", "labels", "secret", "area"):
        assert getattr(one, name) == getattr(other, name)
    assert len(one) == len(other)
    assert FrozenBox.__match_args__ == DataBox.__match_args__
    assert not hasattr(one, "__dict__")


@pytest.mark.parametrize("given", _GIVEN)
@pytest.mark.parametrize("others", _GIVEN)
def test_frozen_values_are_equal_as_those_of_a_dataclass(given: Any, others: Any) -> None:
    """What is not compared makes no difference, to the hash either."""
    one, same = (FrozenBox(*values, **named) for values, named in (given, others))
    assert (one == same) == (DataBox(*given[0], **given[1]) == DataBox(*others[0], **others[1]))
    assert one != same or hash(one) == hash(same)
    assert one != DataBox(*given[0], **given[1])


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1, 2, [], "", 5), {}), ((1,), {"width": 1}), ((1,), {"z": 1})]
)
def test_other_arguments_of_a_frozen_class_are_an_error(values: tuple[int, ...], named: dict[str, int]) -> None:
    for box in (FrozenBox, DataBox):
        with pytest.raises(TypeError, match="__init__"):
            box(*values, **named)


def test_a_frozen_value_does_not_change() -> None:
    box = FrozenBox(1)
    for name in ("width", "new"):
        with pytest.raises(AttributeError):
            setattr(box, name, 2)
    with pytest.raises(AttributeError):
        del box.width
    assert replace(box, height=5) == FrozenBox(1, 5)
    assert replace(box, height=5).area == 5
    assert box == FrozenBox(1)
    assert FrozenBox(1).labels is not FrozenBox(1).labels


@frozen
class Pair:
    left: int
    right: list[int] = field(doc="of many")


@frozen(eq=False, repr=False)
class Alone:
    left: int


def test_a_frozen_value_is_copied_and_sent() -> None:
    pair = Pair(1, [2])
    assert pickle.loads(pickle.dumps(pair)) == copy.copy(pair) == copy.deepcopy(pair) == pair
    assert copy.deepcopy(pair).right is not pair.right


def test_a_frozen_class_without_equality_or_text() -> None:
    assert Alone(1) != Alone(1)
    assert "left" not in repr(Alone(1))
    assert Alone(1).left == 1


def test_what_is_for_dataclasses_works_too() -> None:
    """A type checker lets it pass, so it has to."""
    box = FrozenBox(1, secret="s")
    assert dataclasses.replace(box, height=7) == FrozenBox(1, 7, secret="s")
    assert dataclasses.replace(box, height=7).area == 7
    assert dataclasses.asdict(Pair(1, [2])) == {"left": 1, "right": [2]}
    assert [each.name for each in dataclasses.fields(Pair)] == ["left", "right"]


def test_what_is_said_of_fields() -> None:
    assert {name: each.doc for name, each in fields_of(Pair).items()} == {"left": "", "right": "of many"}
