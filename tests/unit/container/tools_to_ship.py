"""A module with tools in it, as a program has one. It is read as source, too: what is shipped must be exactly right."""

from __future__ import annotations

import functools
import json as j
import os.path
from typing import TYPE_CHECKING, Any

from exeat.container.registry import Registry

if TYPE_CHECKING:
    from decimal import Decimal

try:
    import tomllib
except ImportError:
    tomllib = None  # type: ignore[assignment]

shelf = Registry()
mark = shelf.tool
PASSWORD = "not for sandboxes"
LIMIT, SPACE = 3, " "
TABLE = {"limit": LIMIT}
TABLE |= {"more": 1}


class Box:
    """Uses a global name in a method."""

    def open(self) -> str:
        return _inner(TABLE["limit"])


def _inner(count: int) -> str:
    return SPACE * count


def _unused() -> str:
    return PASSWORD


@shelf.tool(sandbox="default", dependencies=["exgreet==1.0"])
def uses_much(text: str, price: Decimal | None = None) -> dict[str, Any]:
    """Names that are local here are not those of the module."""
    PASSWORD = text  # noqa: N806
    return {"is": j.loads(f'{{"a": "{PASSWORD}{Box().open()}", "toml": {j.dumps(tomllib is not None)}}}')}


@mark
@functools.lru_cache(maxsize=2)
def calls_a_tool(path: str) -> str:
    return os.path.normpath(path) + str(plain(1))


@shelf.tool()
def plain(number: int) -> int:
    return number + 1 if number < LIMIT else plain(0)


@shelf.tool
async def waits(text: str = "x", *, times: int = 2) -> str:
    return text * times


if __name__ == "__main__":
    LIMIT = 99
