"""Files with values in them, hidden from the command: whatever happens to them outside while it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.runs.running import ANYWHERE

pytestmark = pytest.mark.threat("T-H8")

# The wait: in a folder that is shared it is covered again soon, not at once.
LOOK = "cat {0}; echo looked; read line; sleep 0.5; cat {0}; ls {1}"


def replace_it(path: Path) -> None:
    """As editors, credential helpers and agents of key stores do."""
    new = path.with_suffix(".new")
    new.write_text(path.read_text().replace("first", "second"))
    new.rename(path)


def remove_and_write(path: Path) -> None:
    text = path.read_text()
    path.unlink()
    path.write_text(text.replace("first", "second"))


def write_over(path: Path) -> None:
    path.write_text(path.read_text().replace("first", "second"))


@pytest.mark.parametrize("change", [write_over, replace_it, remove_and_write])
@pytest.mark.parametrize("kind", ["file", "secrets file"])
@pytest.mark.parametrize("place", ["at work", "elsewhere"])
def test_a_hidden_file_stays_hidden_when_it_is_renewed(
    place: str, kind: str, change: Callable[[Path], None], tmp_path: Path
) -> None:
    """A mount over a file is gone when someone outside removes the file or puts another in its place."""
    (tmp_path / "other").touch()
    key, config = tmp_path / "key", tmp_path / "secrets.json"
    key.write_text("first-value-0123456789")
    source = {"file": str(key)} if kind == "file" else {"value": "first-value-0123456789"}
    config.write_text(json.dumps({"KEY": {**source, "hosts": ["api.test"]}}))
    path = key if kind == "file" else config
    command = ["sh", "-c", LOOK.format(path, tmp_path)]
    argv = [sys.executable, "-m", "exeat", "run", "--secrets", str(config), "--", *command]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path if place == "at work" else ANYWHERE,
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        begun = run.stdout.readline()
        assert begun == "looked\n"  # nothing before it: the file cannot be read
        change(path)
        run.stdin.write("\n")
        run.stdin.close()
        rest = run.stdout.read()
    assert "other" in rest  # it sees the folder
    assert "-value-0123456789" not in rest


READ_AGAIN = "import os, sys; os.lseek(int(sys.argv[1]), 0, 0); print(os.read(int(sys.argv[1]), 4096).decode(), 'read')"


@pytest.mark.parametrize("how", ["standard input", "secrets file", "file"])
def test_a_descriptor_of_a_hidden_file_is_not_inherited(how: str, tmp_path: Path) -> None:
    """`--secrets /dev/stdin <FILE`, or `/dev/fd/7 7<FILE`: the path is hidden, and the open file is handed over.

    To refuse such a run is as good.
    """
    key, config = tmp_path / "key", tmp_path / "secrets.toml"
    key.write_text("first-value-0123456789")
    hosts = 'hosts = ["api.test"]\n'
    number = 0 if how == "standard input" else 7
    if how == "file":
        config.write_text(f'[KEY]\nfile = "/dev/fd/{number}"\n{hosts}')
        opened, named = key, str(config)
    else:
        config.write_text(f'[KEY]\nvalue = "first-value-0123456789"\n{hosts}')
        opened, named = config, f"/dev/fd/{number}"
    command = ["/usr/bin/python3", "-I", "-S", "-c", READ_AGAIN, str(number)]
    argv = [sys.executable, "-m", "exeat", "run", "--secrets", named, "--", *command]
    shell = ["sh", "-c", f'exec "$@" {number}<"$FILE"', "sh", *argv]
    done = subprocess.run(
        shell, env={**os.environ, "FILE": str(opened)}, capture_output=True, text=True, timeout=40, check=False
    )
    assert "first-value-0123456789" not in done.stdout + done.stderr


@pytest.mark.parametrize("number", [0, 7])
def test_a_descriptor_of_another_file_is_inherited(number: int, tmp_path: Path) -> None:
    """The control of the test before. By another number than that of a stream it must have no name any more."""
    other = tmp_path / "other"
    other.write_text("nothing special")
    argv = [sys.executable, "-m", "exeat", "run", "--", "/usr/bin/python3", "-I", "-S", "-c", READ_AGAIN, str(number)]
    without_name = "" if number == 0 else 'rm "$FILE"; '
    shell = ["sh", "-c", f'exec {number}<"$FILE"; {without_name}exec "$@"', "sh", *argv]
    done = subprocess.run(
        shell, env={**os.environ, "FILE": str(other)}, capture_output=True, text=True, timeout=40, check=False
    )
    assert done.stdout == "nothing special read\n"
