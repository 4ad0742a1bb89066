"""The command's files in a container: those of its image, the working directory, and what was named."""

from __future__ import annotations

import os

from exeat.jail.container.options import Mount
from exeat.run.command_files import CommandFiles
from exeat.run.settings import Plan


class ContainerFiles(CommandFiles):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.cwd = os.getcwd()
        named = plan.settings.container.mounts if plan.settings.container is not None else ()
        self.mounts = (Mount(self.cwd, self.cwd), *named)
