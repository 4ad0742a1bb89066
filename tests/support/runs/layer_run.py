"""A run with layers, without a jail: `tests.support.runs.layer_inside` as a user, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.support.programs import Finished
from tests.support.runs.running import TIMEOUT_S, as_user, environment


def layer_run(
    folder: str,
    script: str,
    state: str,
    uid: int | None,
    limit: int = 1 << 30,
    hidden: str = "",
    before: Sequence[str] = (),
) -> dict[str, Any]:
    """Run it as a user, under the command `before`. FOLDER has no comma or colon and is not below /mnt."""
    program = [sys.executable, "-m", "tests.support.runs.layer_inside", folder, script, str(limit), hidden]
    argv = [*before, *as_user(uid), *program]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment(EXEAT_HOME=state)
    )
    assert done.returncode == 0, Finished(done.returncode, done.stdout, done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
