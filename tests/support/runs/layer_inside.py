"""A run with layers, without a jail: a folder under an overlay in namespaces of its own, and what exeat keeps of it.

`python -m tests.support.runs.layer_inside FOLDER SCRIPT LIMIT HIDDEN`: runs a shell script in which FOLDER is overlaid,
with the kept layers of the sandbox `box` below; then counts and keeps what it wrote, as a run does. Prints JSON.
It is started hundreds of times, so it loads little: no pytest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from exeat.errors import ExeatError
from exeat.files.layers.folding import fold_layers
from exeat.files.layers.kept import kept_layers
from exeat.files.layers.saving import save_layer
from exeat.files.layers.upper import count_changes
from exeat.jail.files.trees import step_down
from exeat.sandbox.folder import open_sandbox

_INSIDE = """
mount -t tmpfs -o mode=755 stage /mnt && mkdir -m 755 /mnt/upper /mnt/work || exit 99
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=/mnt/upper,workdir=/mnt/work$MORE" "$FOLDER" || exit 99
(cd "$FOLDER" && eval "$SCRIPT") >&2
echo "$?"
read -r _
"""


def main(folder: str, script: str, limit: int, hidden: str) -> dict[str, Any]:
    with open_sandbox("box", create=True) as box:
        fold_layers(box)
        trees = kept_layers(box)
        status, upper = _run(folder, script, _lowers(folder, trees), as_root=os.geteuid() == 0)
        parts = [(folder, upper)]
        counted = count_changes(parts, 100_000)
        said: dict[str, Any] = {"status": status, "layers": len(trees), "counted": counted._asdict()}
        try:
            saved = save_layer(box, parts, limit, hidden=[hidden] if hidden else [])
        except ExeatError as error:
            return said | {"error": error.public}
        return said | {"saved": saved._asdict()}


def _lowers(folder: str, trees: list[int]) -> list[str]:
    """What earlier runs have left of the folder, as a jail finds it, and the folder unless all of it is hidden."""
    found = []
    for tree in trees:
        descriptor, hides = step_down(_path_of(tree), folder)
        if descriptor >= 0:
            found.append(_path_of(descriptor))
        if hides:
            return found
    return [*found, folder]


def _path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _run(folder: str, script: str, lowers: list[str], *, as_root: bool) -> tuple[int, int]:
    more = ",index=off,metacopy=off,redirect_dir=nofollow" if as_root else ",userxattr"
    given = {"FOLDER": folder, "SCRIPT": script, "LOWER": ":".join(lowers), "MORE": more}
    argv = ["unshare", "-m" if as_root else "-Urm", "sh", "-c", _INSIDE]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=os.environ | given, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        status = int(child.stdout.readline() or 99)
        upper = os.open(f"/proc/{child.pid}/root/mnt/upper", os.O_PATH)
        child.communicate()  # the end of its input lets it go, and its mounts with it
    return status, upper


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])))
