"""Intermediate images and containers of a build, including those of builds that were killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError, NotFoundError
from exeat.engine.owner import OWNER, is_left_over


def remove_build_steps(engine: Engine, is_ours: Callable[[Mapping[str, str]], bool] = is_left_over) -> list[str]:
    """The images between the steps of a build: untagged, with labels that say whose they are.

    One by one and without their parents: a parent may be an image of the user's that has no tag.
    """
    query = {"all": True, "filters": {"label": [OWNER]}}
    steps = [
        image["Id"]
        for image in engine.call("GET", "/images/json", query=query)
        if is_ours(image.get("Labels") or {}) and not _tags(image)
    ]
    removed: list[str] = []
    while gone := [each for each in steps if each not in removed and _remove(engine, each)]:
        removed += gone  # those that they were children of can go now
    return removed


def _tags(image: Mapping[str, Any]) -> list[str]:
    return [tag for tag in image.get("RepoTags") or () if tag != "<none>:<none>"]


def _remove(engine: Engine, image: str) -> bool:
    try:
        engine.call("DELETE", f"/images/{image}", query={"noprune": True})
    except NotFoundError:
        return True
    except EngineError:
        return False  # it has children, or a container is made of it
    return True
