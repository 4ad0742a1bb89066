"""Values as frozen dataclasses have them, for the start-up path of `exeat run`.

`dataclasses` takes 10 ms to load, and a NamedTuple 0.2 ms to make: a run has thirty of them before its command starts.
Type checkers take a `Value` for a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NoReturn, Self, dataclass_transform


@dataclass_transform(frozen_default=True)
class Value:
    """Fields are the annotations of a subclass, in their order; a field with a value in the class may be left out."""

    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.__match_args__ = tuple(cls.__annotations__)  # type: ignore[misc]  # the class has none yet

    def __init__(self, *values: Any, **named: Any) -> None:
        names = self.__match_args__
        given = dict(zip(names, values, strict=False)) | named
        missing = [name for name in names if name not in given and not hasattr(type(self), name)]
        if missing or len(values) + len(named) > len(given) or not given.keys() <= set(names):
            raise TypeError(f"{type(self).__name__} has other fields: {', '.join(names)}")
        vars(self).update(given)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} does not change")

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self.__match_args__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash((type(self), *self))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"{type(self).__name__}({fields})"

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__match_args__}

    def replace(self, **changes: Any) -> Self:
        """Another one, with these fields instead."""
        return type(self)(**self.as_dict() | changes)
