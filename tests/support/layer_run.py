"""A run with layers, without a jail: a folder under an overlay in namespaces of its own, and what exeat keeps of it.

`python -m tests.support.layer_run FOLDER SCRIPT`: runs a shell script in which FOLDER is overlaid, with the kept layers
of the sandbox `box` below; then counts and keeps what it wrote, as a run does. Prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exeat.errors import ExeatError
from exeat.files.folding import fold_layers
from exeat.files.kept import kept_layers
from exeat.files.saving import count_changes, save_layer
from exeat.jail.trees import step_down
from exeat.sandbox.folder import open_sandbox
from tests.support.programs import Finished
from tests.support.running import TIMEOUT_S, as_user, environment

_INSIDE = """
mount -t tmpfs -o mode=755 stage /mnt && mkdir -m 755 /mnt/upper /mnt/work || exit 99
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=/mnt/upper,workdir=/mnt/work$MORE" "$FOLDER" || exit 99
(cd "$FOLDER" && eval "$SCRIPT") >&2
echo "$?"
read -r _
"""


def layer_run(
    folder: str,
    script: str,
    state: str,
    uid: int | None,
    limit: int = 1 << 30,
    hidden: str = "",
    before: Sequence[str] = (),
) -> dict[str, Any]:
    """Run this module as a user, under the command `before`. FOLDER has no comma or colon and is not below /mnt."""
    argv = [*before, *as_user(uid), sys.executable, "-m", "tests.support.layer_run", folder, script, str(limit), hidden]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment(EXEAT_HOME=state)
    )
    assert done.returncode == 0, Finished(done.returncode, done.stdout, done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(folder: str, script: str, limit: int, hidden: str) -> dict[str, Any]:
    with open_sandbox("box", create=True) as box:
        fold_layers(box)
        trees = kept_layers(box)
        lowers = _find_lowers(trees, folder)
        as_root = os.geteuid() == 0
        status, upper = _run(folder, script, lowers, as_root=as_root)
        parts = [(folder, upper)]
        counted = count_changes(parts, 100_000)
        said: dict[str, Any] = {"status": status, "layers": len(trees), "counted": counted._asdict()}
        try:
            saved = save_layer(box, parts, limit, hidden=[hidden] if hidden else [])
        except ExeatError as error:
            return said | {"error": error.public}
        return said | {"saved": saved._asdict()}


def _find_lowers(trees: Sequence[int], folder: str) -> list[str]:
    """What the kept layers have of this folder, as far as the newer do not hide the older."""
    found = []
    for tree in trees:
        descriptor, hides = step_down(f"/proc/self/fd/{tree}/.", folder)
        if descriptor >= 0:
            found.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        if hides:
            break
    return found


def _run(folder: str, script: str, lowers: list[str], *, as_root: bool) -> tuple[int, int]:
    lower, more = (
        ":".join([*lowers, folder]),
        ",index=off,metacopy=off,redirect_dir=nofollow" if as_root else ",userxattr",
    )
    given = {"FOLDER": folder, "SCRIPT": script, "LOWER": lower, "MORE": more}
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
