"""Run programs and print how each of them ended, one JSON object on a line: FILE, which holds

    {"unset": [VARIABLE...], "programs": [{"name": ..., "argv": [...], "env": {...}, "cwd": ...}...]}

`$API_KEY` in a program's words and variables is replaced as a shell would. The first line is the key itself.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

plan = json.loads(Path(sys.argv[1]).read_text())
key = os.environ["API_KEY"]
environment = {name: value for name, value in os.environ.items() if name not in plan["unset"]}


def filled(text: str) -> str:
    return text.replace("$API_KEY", key)


def run(program: dict[str, Any]) -> dict[str, Any]:
    env = environment | {name: filled(value) for name, value in program["env"].items()}
    argv = [filled(word) for word in program["argv"]]
    try:
        done = subprocess.run(
            argv, env=env, cwd=program["cwd"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False
        )
    except subprocess.TimeoutExpired as late:
        return {"status": -1, "stdout": "", "stderr": f"still running after 30 s: {late.stderr!r}"}
    except OSError as error:
        return {"status": -1, "stdout": "", "stderr": str(error)}
    return {
        "status": done.returncode,
        "stdout": done.stdout.decode(errors="replace"),
        "stderr": done.stderr.decode(errors="replace"),
    }


print(json.dumps(key), flush=True)
with ThreadPoolExecutor(3) as pool:
    for program, ended in zip(plan["programs"], pool.map(run, plan["programs"]), strict=True):
        print(json.dumps({"name": program["name"], **ended}), flush=True)
