"""Images at an engine: whether one is there, fetching it with its progress shown, removing what a build left."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError, NotFoundError
from exeat.engine.owner import OWNER, is_left_over

Say = Callable[[str], None]  # one line for a person who waits


def default_image() -> str:
    """What EXEAT_IMAGE names, else a small image with this Python."""
    return os.environ.get("EXEAT_IMAGE") or f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"


def find_image(engine: Engine, name: str) -> dict[str, Any] | None:
    """What the engine says of it; None if it is not there."""
    try:
        found: dict[str, Any] = engine.call("GET", f"/images/{quote(name, safe='/:@')}/json")
    except NotFoundError:
        return None
    return found


def ensure_image(engine: Engine, name: str, say: Say) -> dict[str, Any]:
    """As `find_image`, but fetched first if it is not there. Raises EngineError if that cannot be done."""
    found = find_image(engine, name)
    if found is None:
        pull_image(engine, name, say)
        found = find_image(engine, name)
    if found is None:
        raise _not_pulled(engine, name, "the engine fetched it and does not have it")
    return found


def pull_image(engine: Engine, name: str, say: Say) -> None:
    """Let the engine fetch it."""
    say(f"{name} is not here yet: fetching it")
    try:
        for event in engine.stream("POST", "/images/create", query=_reference(name)):
            if problem := event.get("error"):
                raise _not_pulled(engine, name, str(problem))
            if status := event.get("status"):
                say(" ".join(str(part) for part in (event.get("id"), status, event.get("progress")) if part))
    except EngineError as error:
        if error.status:
            raise _not_pulled(engine, name, error.public.removeprefix("the engine refused: ")) from None
        raise


def _reference(name: str) -> dict[str, str]:
    """Without a tag an engine would fetch all of them."""
    repository, _, last = name.rpartition("/")
    if "@" in last:
        return {"fromImage": name}
    image, _, tag = last.partition(":")
    return {"fromImage": f"{repository}/{image}" if repository else image, "tag": tag or "latest"}


def _not_pulled(engine: Engine, name: str, detail: str) -> EngineError:
    return EngineError(
        f"the image {name} is not here and could not be fetched",
        detail=detail,
        fix=f"{engine.kind} pull {name} shows more; or name an image that is here (`{engine.kind} images`), "
        "for all with EXEAT_IMAGE",
    )


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
