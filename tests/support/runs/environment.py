"""exeat in a virtual environment of a user's, as something to attack."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import exeat as package
from tests.support.programs import Finished
from tests.support.runs.running import as_user, exeat


class Environment:
    """A virtual environment of a user's with exeat in it. What exeat needs is elsewhere."""

    def __init__(self, folder: Path, uid: int | None) -> None:
        self.folder = folder / "project"
        self.root = self.folder / ".venv"
        self.uid = uid
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.root)], check=True)
        names = {"base": str(self.root), "platbase": str(self.root)}
        self.packages = Path(sysconfig.get_path("purelib", "venv", vars=names))
        source = Path(package.__file__).parent
        shutil.copytree(source, self.packages / "exeat", ignore=shutil.ignore_patterns("__pycache__"))
        (self.packages / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        if uid is not None:
            subprocess.run(["chown", "-R", f"{uid}:{uid}", str(self.folder)], check=True)

    def run(self, *options: str, command: Sequence[str], **more: Any) -> Finished:
        argv = [*as_user(self.uid), str(self.root / "bin" / "python"), "-m", "exeat", "run", *options, "--", *command]
        return exeat(argv=argv, **({"cwd": self.folder} | more))

    def tries(self) -> list[str]:
        packages = self.packages
        return [
            f"plant={packages}/exeat/cli/main.py",
            f"replace={packages}/exeat/__init__.py",
            f"plant={packages}/planted.pth",
            f"plant={packages}/sitecustomize.py",
            f"remove={packages}/needed.pth",
            f"plant={self.root}/pyvenv.cfg",
            f"replace={self.root}/bin/python",
            f"swap={packages}/exeat",
            f"swap={packages}",
            f"swap={self.root}",
            f"swap={self.folder}",
        ]
