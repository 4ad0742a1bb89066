"""Frozen values like dataclasses, but fast to load, for the start-up path of `exeat run`.

`dataclasses` takes 5 ms to load, with what it needs itself, and 0.3 ms for each class; a NamedTuple takes 0.2 ms. A run
has fifty of them before its command starts. Type checkers take what is here for frozen dataclasses.

`Value` is for what is made a few times in a run. `@frozen` is for what is made with every request: it has slots, and an
`__init__` as fast as that of a dataclass, which is compiled when it is first called. The class takes 0.02 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, ClassVar, Final, NoReturn, Self, TypeVar, dataclass_transform, overload

T = TypeVar("T")


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


_MISSING: Final = object()


class Field:
    """What was said of a field of a `@frozen` class."""

    __slots__ = ("compare", "default", "doc", "factory", "init", "shown")

    def __init__(
        self,
        default: object = _MISSING,
        factory: Callable[[], object] | None = None,
        init: bool = True,
        shown: bool = True,
        compare: bool = True,
        doc: str = "",
    ) -> None:
        self.default = default
        self.factory = factory
        self.init = init
        self.shown = shown
        self.compare = compare
        self.doc = doc


def field(
    *,
    default: Any = _MISSING,
    default_factory: Callable[[], object] | None = None,
    init: bool = True,
    repr: bool = True,  # noqa: A002 - as in dataclasses
    compare: bool = True,
    doc: str = "",
) -> Any:
    """What is special about a field of a `@frozen` class. One with `init=False` is set in `__post_init__`."""
    return Field(default, default_factory, init, repr, compare, doc)


@overload
def frozen(kind: type[T], /) -> type[T]: ...
@overload
def frozen(*, eq: bool = True, repr: bool = True) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[T] | None = None, /, *, eq: bool = True, repr: bool = True) -> Any:  # noqa: A002 - as above
    """As `@dataclass(frozen=True, slots=True)`. Fields are the class's own; none are inherited."""
    if kind is None:
        return lambda each: _freeze(each, eq=eq, shown=repr)
    return _freeze(kind, eq=eq, shown=repr)


def fields_of(kind: type) -> dict[str, Field]:
    """The fields of a `@frozen` class by their names, in order."""
    return kind.__frozen_fields__  # type: ignore[attr-defined,no-any-return]  # set by `_freeze`


def replace(value: T, **changes: Any) -> T:
    """Another one of a `@frozen` class, with these fields instead."""
    fields = fields_of(type(value))
    kept = {name: getattr(value, name) for name, each in fields.items() if each.init and name not in changes}
    return type(value)(**kept, **changes)


def _freeze(kind: type[T], *, eq: bool, shown: bool) -> type[T]:
    """A class with slots has to be made again: it cannot get them later."""
    given = dict(vars(kind))
    fields: dict[str, Field] = {}
    for name in kind.__annotations__:
        default = given.pop(name, _MISSING)
        fields[name] = default if isinstance(default, Field) else Field(default)
    given.pop("__dict__", None)
    given.pop("__weakref__", None)
    made: Any = type(kind.__name__, kind.__bases__, given | _as_frozen(fields, eq=eq, shown=shown))
    made.__qualname__ = kind.__qualname__

    def begin(self: Any, *values: Any, **named: Any) -> None:
        made.__init__ = _compile_init(made, fields)
        made.__init__(self, *values, **named)

    made.__init__ = begin
    return made  # type: ignore[no-any-return]  # of that kind


def _as_frozen(fields: dict[str, Field], *, eq: bool, shown: bool) -> dict[str, Any]:
    def show(self: Any) -> str:
        parts = ", ".join(f"{name}={getattr(self, name)!r}" for name, each in fields.items() if each.shown)
        return f"{type(self).__qualname__}({parts})"

    has: dict[str, Any] = {
        "__slots__": tuple(fields),
        "__match_args__": tuple(name for name, each in fields.items() if each.init),
        "__frozen_fields__": fields,
        "__dataclass_fields__": _ForDataclasses(),
        "__setattr__": _refuse_change,
        "__delattr__": _refuse_change,
        "__getstate__": lambda self: [getattr(self, name) for name in fields],
        "__setstate__": _set_state,
    }
    if shown:
        has["__repr__"] = show
    if not eq:
        return has
    compared = attrgetter(*(name for name, each in fields.items() if each.compare))
    has["__hash__"] = lambda self: hash(compared(self))
    has["__eq__"] = lambda self, other: (
        compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented
    )
    return has


class _ForDataclasses:
    """What `dataclasses.replace` and its like look for. Type checkers do not say that they are for dataclasses only."""

    def __get__(self, value: object, kind: type) -> dict[str, Any]:
        dataclasses = sys.modules.get("dataclasses")  # whoever asks has loaded it
        if dataclasses is None:
            raise AttributeError("__dataclass_fields__")
        named = [(name, object, dataclasses.field(init=each.init)) for name, each in fields_of(kind).items()]
        found: dict[str, Any] = dataclasses.make_dataclass(kind.__name__, named).__dataclass_fields__
        return found


def _refuse_change(self: object, name: str, value: object = None) -> NoReturn:
    raise AttributeError(f"{type(self).__name__} does not change")


def _set_state(self: Any, state: list[object]) -> None:
    for name, each in zip(self.__slots__, state, strict=True):
        object.__setattr__(self, name, each)


def _compile_init(kind: Any, fields: dict[str, Field]) -> Callable[..., None]:
    known: dict[str, Any] = {"_missing": _MISSING}
    arguments, steps = ["self"], []
    for name, each in fields.items():
        known[f"_set_{name}"] = vars(kind)[name].__set__
        known[f"_default_{name}"] = each.default
        known[f"_make_{name}"] = each.factory
        value = name if each.init else f"_default_{name}"
        if each.init:
            default = f"=_default_{name}" if each.default is not _MISSING or each.factory is not None else ""
            arguments.append(f"{name}{default}")
        if each.factory is not None:
            value = f"_make_{name}() if {value} is _missing else {value}"
        if each.init or each.default is not _MISSING or each.factory is not None:
            steps.append(f" _set_{name}(self, {value})")
    if hasattr(kind, "__post_init__"):
        steps.append(" self.__post_init__()")
    # As dataclasses do it: names of fields are all that is in the text.
    exec("\n".join((f"def __init__({', '.join(arguments)}):", *steps)), known)  # noqa: S102
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{kind.__qualname__}.__init__"
    return made
