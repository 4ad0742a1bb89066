"""Sandbox images without hardening: that is tested where images are, and takes long."""

from __future__ import annotations

from exeat.container.builder import SandboxBuilder
from exeat.container.images.building import ensure_built
from exeat.container.images.halt import Halt, in_thread
from exeat.container.images.image import BuildOrder, Built, sandbox_order
from exeat.jail.container.images import find_image


class QuickBuilder(SandboxBuilder):
    """The harness and the tools on the base image as it is."""

    async def ensure_sandbox(self, name: str) -> str:
        tools = self.registry.tools(name)

        def ensure(halt: Halt) -> str:
            base = find_image(self.engine, self.registry.sandbox(name).base_image)

            def order(mark: str) -> BuildOrder:
                return sandbox_order(name, Built(base.name, base.id), tools, mark)

            tag = order("").tag
            return ensure_built(self.engine, name, tag, order, network="none", say=lambda line: None, halt=halt).tag

        return await in_thread(ensure)
