"""Values of the start-up path behave as frozen dataclasses do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from exeat.values import Value


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
