"""The second half of `make demo`: the same agent in a container, where there is an engine and an image with Python."""

from __future__ import annotations

from examples.demo import show
from exeat.engine.client import Engine
from exeat.engine.errors import EngineError
from exeat.engine.find import open_engine
from exeat.jail.container.images import default_image


def find_image(engine: Engine) -> str:
    """One that is here already: a demo fetches nothing."""
    image = default_image()
    try:
        engine.call("GET", f"/images/{image}/json")
    except EngineError:
        return ""
    return image


def main() -> None:
    try:
        engine = open_engine()
        image = find_image(engine)
    except EngineError:
        print("\nThe same in a container needs Docker or Podman, which are not here: docs/containers.md")
        return
    if not image:
        print(f"\nThe same in a container: {engine.kind} pull {default_image()}, then make demo again")
        return
    print(f"\nThe same in a container of {engine.kind}:\n", flush=True)
    show(image)


if __name__ == "__main__":
    main()
