"""Whether arguments fit a function."""

from __future__ import annotations

import inspect
import types
import typing


class ArgumentsError(Exception):
    """The arguments do not fit the function."""


def check_arguments(function: typing.Callable[..., object], arguments: dict[str, object]) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        known = ", ".join(str(each) for each in signature.parameters.values())
        raise ArgumentsError(f"{error}; the tool takes ({known})") from None
    try:
        hints = typing.get_type_hints(function)
    except Exception:
        return  # annotations that mean nothing at run time
    for name, value in arguments.items():
        wanted = hints.get(name, typing.Any)
        if not fits(value, wanted):
            shown = getattr(wanted, "__name__", None) if isinstance(wanted, type) else str(wanted)
            raise ArgumentsError(f"the argument {name!r} must be {shown}, not {type(value).__name__}")


def fits(value: object, wanted: typing.Any) -> bool:
    """Whether a value that came as JSON fits an annotation. What JSON has no word for is the tool's own business."""
    origin = typing.get_origin(wanted) or wanted
    if origin is typing.Union or origin is getattr(types, "UnionType", typing.Union):
        return any(fits(value, each) for each in typing.get_args(wanted))
    if origin is typing.Literal:
        return any(value == each and type(value) is type(each) for each in typing.get_args(wanted))
    if origin is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin in (str, bool, list, dict, type(None)):
        return isinstance(value, origin)
    return True
