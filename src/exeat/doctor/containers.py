"""Finds the engines for `exeat run --container`, and the way into the network of their containers.

Engines are asked, and nothing is started in them. One that does not answer costs a few seconds, not the report.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exeat.errors import JailError

if TYPE_CHECKING:
    from exeat.engine.client import Engine

ASK_S = 3.0  # for an answer of the engine
WAIT_S = 8.0  # for everything; Podman's service may have to be started
_ELSEWHERE = "run exeat on the engine's machine; from here, the gateway runs as a sidecar, which is weaker"


@dataclass(frozen=True, slots=True)
class EngineLine:
    """One kind of engine: where it is and how it is used, or why it is not and what would help."""

    kind: str
    ok: bool
    why: str
    fix: str = ""
    version: str = ""
    where: str = ""
    rootless: bool = False
    way: str = ""
    image: str = ""  # the default one; "": it is not there and would be pulled
    notes: tuple[str, ...] = ()  # what a run has to do without

    def to_texts(self) -> list[str]:
        """What a person wants to know, a sentence each."""
        if not self.ok:
            return [self.why, *([f"to get it: {self.fix}"] if self.fix else [])]
        rootless = ", rootless" if self.rootless else ""
        where = self.where or "without a socket: exeat starts its service for each run"
        return [f"version {self.version}{rootless}, {where}", *([self.why] if self.why else []), *self.notes]


def examine_engines(kinds: Sequence[str] = ("docker", "podman")) -> tuple[EngineLine, ...]:
    """All at once, each for a few seconds at most."""
    lines = {kind: EngineLine(kind, False, f"it has not answered for {WAIT_S:g} s", _restart(kind)) for kind in kinds}

    def ask(kind: str) -> None:
        lines[kind] = _examine(kind)

    # They may hang in the kernel or in Podman; the process need not wait for them to end.
    threads = [threading.Thread(target=ask, args=(kind,), daemon=True) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    return tuple(lines[kind] for kind in kinds)


def _examine(kind: str) -> EngineLine:
    try:
        # Loaded here: not every system that doctor runs on has what these need.
        from exeat.engine.find import open_engine

        return _describe(open_engine(kind), kind)
    except JailError as error:
        detail = f": {error.detail}" if error.detail else ""
        return EngineLine(kind, False, f"{error.public}{detail}", error.fix)
    except (ImportError, AttributeError, OSError) as error:
        return EngineLine(kind, False, f"not available on this system ({error})")


def _describe(engine: Engine, kind: str) -> EngineLine:
    from exeat.jail.container.limits import check_limits
    from exeat.jail.container.options import ContainerOptions
    from exeat.jail.container.ways import Name, find_way

    info = engine.info(ASK_S)
    way = find_way(engine)
    image = _default_image(engine)
    notes = [check_limits(engine, ContainerOptions())]
    if not image:
        notes.append(f"the image {_default_name()} is not there: the first run pulls it; another one: EXEAT_IMAGE=NAME")
    return EngineLine(
        kind,
        way.name is not Name.SIDECAR,
        f"way in: {way.name}; {way.why}",
        _ELSEWHERE if way.name is Name.SIDECAR else "",
        version=str(info.get("ServerVersion", "")),
        where="" if engine.is_for_us else engine.where,
        rootless=engine.is_rootless,
        way=str(way.name),
        image=image,
        notes=tuple(filter(None, notes)),
    )


def _default_name() -> str:
    from exeat.jail.container.images import default_image

    return default_image()


def _default_image(engine: Engine) -> str:
    from exeat.engine.errors import NotFoundError

    name = _default_name()
    try:
        engine.call("GET", f"/images/{name}/json", timeout_s=ASK_S)
    except NotFoundError:
        return ""
    return name


def _restart(kind: str) -> str:
    return "systemctl restart docker" if kind == "docker" else "systemctl --user restart podman.socket; podman info"
