"""Removing a container that may be ending, or be removed by its engine, at the same time."""

from __future__ import annotations

import time
from typing import Final

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError, NotFoundError

_REMOVED_S: Final = 30.0
_LOOK_S: Final = 0.01


def remove_container(engine: Engine, container: str) -> None:
    """It is gone then, with what is in it, or the engine is. What is left all the same, the next run removes."""
    deadline = time.monotonic() + _REMOVED_S
    while time.monotonic() < deadline:
        try:
            engine.raw("DELETE", f"/containers/{container}?force=true&v=true")
        except NotFoundError:
            return
        except EngineError as error:
            if not error.status:
                return
            time.sleep(_LOOK_S)  # it is being removed, or is about to end
        else:
            return
