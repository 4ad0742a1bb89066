"""Images, networks and sidecars for the sandboxes of a registry, made when they are needed.

    builder = SandboxBuilder(registry)
    image = await builder.ensure_sandbox("default")

All of it may be called again, and by several processes at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

from exeat.container.images.building import Say, ensure_built
from exeat.container.images.halt import Halt, in_thread
from exeat.container.images.image import BuildOrder, hardened_order, hardened_tag, sandbox_order
from exeat.container.images.package_index import PackageIndex, read_package_index
from exeat.container.registry import Registry
from exeat.engine.client import Engine
from exeat.engine.find import open_engine
from exeat.jail.container.images import Image, find_image

_PING_S: Final = 30.0


class SandboxBuilder:
    """Makes what the sandboxes of a registry need at an engine.

    Raises EngineError, a RuntimeError with what to do about it, if the engine is not there or does not answer.
    `on_progress` gets one line at a time, in another thread; without it, a terminal at stderr does.
    `build_network` is what a build that fetches packages is connected to; all others have no network.
    """

    def __init__(
        self,
        registry: Registry,
        engine: Engine | None = None,
        *,
        on_progress: Callable[[str], None] | None = None,
        build_network: str = "default",
    ) -> None:
        self.registry = registry
        self.engine = open_engine() if engine is None else engine
        self.engine.raw("GET", "/_ping", timeout_s=_PING_S)
        self._say: Say = on_progress or _say_on_terminal
        self._build_network = build_network

    async def ensure_sandbox(self, name: str) -> str:
        """The image of a sandbox, `exeat-sandbox-NAME:CHECKSUM`; built only if it is not there.

        Raises UnknownSandboxError, a ValueError; BuildError with the log; EngineError if the base image is not there
        and cannot be fetched. Images of other versions are left alone.
        """
        config = self.registry.sandbox(name)
        requirements = self.registry.dependencies(name)
        tools = self.registry.tools(name)

        def ensure(halt: Halt) -> str:
            def say(line: str) -> None:
                halt.check()  # an image that is being fetched has nothing else to break it off by
                self._say(line)

            base = find_image(self.engine, config.base_image, say)
            build = partial(ensure_built, self.engine, name, network=self._build_network, say=say, halt=halt)
            hardened = build(hardened_tag(base, requirements), partial(_order_hardened, base, requirements))
            order = partial(sandbox_order, name, hardened, tools)
            return build(order("").tag, order).tag

        return await in_thread(ensure)

    async def ensure_network(self, name: str) -> Any:
        """The internal network of a sandbox."""
        self.registry.sandbox(name)
        sidecar = import_module("exeat.container.sidecar")
        return await in_thread(lambda _: sidecar.ensure_network(self.engine, name))

    async def ensure_proxy(self, network_name: str | None = None) -> Any:
        """The gateway as a sidecar, with the rules of every sandbox that is not isolated."""
        sidecar = import_module("exeat.container.sidecar")
        return await in_thread(lambda _: sidecar.ensure_proxy(self.engine, self.registry, network_name))


def _order_hardened(base: Image, requirements: tuple[str, ...], mark: str) -> BuildOrder:
    index = read_package_index() if requirements else PackageIndex()
    return hardened_order(base, requirements, index, mark)


def _say_on_terminal(line: str) -> None:
    if sys.stderr.isatty():
        print(f"exeat: {line}", file=sys.stderr)  # noqa: T201 - a person waits
