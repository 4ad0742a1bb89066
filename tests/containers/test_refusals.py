"""What is not possible with a container is refused before an engine is asked, with what to use instead."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.runs.running import environment, exeat


@pytest.mark.threat("T-F2")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--files", "host"], "a container has the files of its image"),
        (["--layer-size", "1GB"], "a container has no layer"),
        (["--device", "/dev/null"], "a container has devices of its own"),
        (["--nest"], "not in the container jail"),
        (["--mount", "/etc"], "is not a mount"),
        (["--mount", "/etc:data"], "data is not a full path in the container"),
        (["--mount", "/etc:/proc/x"], "/proc is the container's own"),
        (["--mount", "missing:/data"], "missing does not exist"),
        (["--mount", "app.sock:/data"], "is the socket of an engine, through which the command could get out"),
        (["--mount", ".:/data"], "has the socket of an engine in it"),
        (["--unix", "{here}/app.sock"], "is the socket of an engine"),
        (["--mount", "state:/data"], "is exeat's own"),
        (["--mount", "home/.ssh/id_rsa:/data"], "is hidden from the command"),
        (["--show", "home/.ssh"], "is not in the container"),
        (["--mount", "home:/data", "--mount", "home:/data"], "two mounts cannot have the same target"),
        (["--mount", "home:/data", "--mount", "home:/data/new"], "would create"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_it_is_said(tmp_path: Path, options: list[str], said: str) -> None:
    for name in ("home/.ssh", "state", "work"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home/.ssh/id_rsa").touch()
    env = environment(HOME=str(tmp_path / "home"), EXEAT_HOME=str(tmp_path / "state"))
    env["DOCKER_HOST"] = f"unix://{tmp_path}/app.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "app.sock"))
        engine.listen()
        options = [each.replace("{here}", str(tmp_path)) for each in options]
        cwd = tmp_path / "work"
        fixed = [_from(tmp_path, each) for each in options]
        done = exeat("--container", "image", *fixed, command=["true"], env=env, cwd=cwd)
    assert done.status == 2, done
    assert said in done.stderr, done.stderr


def _from(folder: Path, option: str) -> str:
    source, colon, rest = option.partition(":")
    if option.startswith(("-", "/", "view", "host")) or option[0].isdigit():
        return option
    return f"{folder / source}{colon}{rest}"
