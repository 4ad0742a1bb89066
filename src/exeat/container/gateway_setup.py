"""The build step of a gateway image, run by its base. Needs nothing but Python.

    python3 -I gateway_setup.py FOLDER ABI MAGIC DATA USER

The packages in FOLDER were compiled for ABI. A Python that cannot load them is refused; any other learns where they are
and has them compiled: with a read-only root it could not keep what it compiles itself. DATA is made for USER.
"""

import compileall
import importlib.machinery
import importlib.util
import os
import py_compile
import site
import sys
from pathlib import Path

REFUSED = "exeat: "  # begins the line that says why


def main(folder: str, abi: str, magic: str, data: str, user: str) -> None:
    found = importlib.machinery.EXTENSION_SUFFIXES[0]
    if (found, importlib.util.MAGIC_NUMBER.hex()) != (abi, magic):
        version = sys.version.split()[0]
        sys.exit(f"{REFUSED}it has Python {version} ({found}), and exeat here is compiled for {abi}")
    path = Path(site.getsitepackages()[0], "exeat.pth")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Before the base's own packages: an old one of these must not be taken instead.
    path.write_text(f"import sys; sys.path.insert(0, {folder!r})\n")
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(folder, quiet=1, invalidation_mode=mode):
        sys.exit(f"{REFUSED}its Python cannot compile exeat")
    Path(data).mkdir(parents=True, exist_ok=True)
    os.chown(data, int(user), int(user))  # a volume that is mounted there first takes this over


if __name__ == "__main__":
    main(*sys.argv[1:])
