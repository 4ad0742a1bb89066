"""Secrets files: what the command must not see, and who else can read them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.secrets.model import SecretSpec
from exeat.secrets.setup.config import combine, parse_secrets
from exeat.secrets.setup.values import (
    files_to_hide,
    load_secrets_file,
    source_warnings,
    variables_to_drop,
)

VALUE = "Qx7-REAL-credential-93"


def specs(**tables: Mapping[str, object]) -> tuple[SecretSpec, ...]:
    filled = {name: {"hosts": ["a.test"], **table} for name, table in tables.items()}
    return combine([parse_secrets(json.dumps(filled), "s.json")])


# What the command must not see


def test_what_is_kept_from_the_command(tmp_path: Path) -> None:
    """Every variable and file that holds a value; a link, which may be turned, and the file behind it."""
    (tmp_path / "real").write_text(VALUE)
    (tmp_path / "link").symlink_to("real")
    found = specs(
        A={"env": "ONE"},
        B={"env": "TWO"},
        C={"file": str(tmp_path / "link")},
        D={"file": str(tmp_path / "real")},
        E={"value": VALUE},
    )
    assert variables_to_drop(found) == {"ONE", "TWO", "EXEAT_SECRETS_JSON"}
    assert variables_to_drop(()) == {"EXEAT_SECRETS_JSON"}
    assert set(files_to_hide(found)) == {
        str(tmp_path / "link"),
        str(tmp_path / "real"),
        str(tmp_path.resolve() / "real"),
    }


# Secrets files


def test_a_file_that_everybody_can_read_is_warned_of(tmp_path: Path) -> None:
    """Only if a value is in it: one that names variables has nothing to hide."""
    file = tmp_path / "s.toml"
    for content, mode, warned in (
        (f'value = "{VALUE}"', 0o644, True),
        (f'value = "{VALUE}"', 0o604, True),
        (f'value = "{VALUE}"', 0o640, False),
        (f'value = "{VALUE}"', 0o600, False),
        ('env = "B"', 0o644, False),
    ):
        file.write_text(f'[A]\n{content}\nhosts = ["a.test"]\n')
        file.chmod(mode)
        found, warnings = load_secrets_file(str(file))
        assert [spec.name for spec in found] == ["A"]
        assert (len(warnings) == 1 and f"{mode:04o}" in warnings[0]) == warned, (content, mode)
        assert VALUE not in str(warnings)


def test_a_value_file_that_everybody_can_read_is_warned_of(tmp_path: Path) -> None:
    """And one that is not there; nothing is opened for that."""
    file = tmp_path / "token"
    file.write_text(VALUE)
    file.chmod(0o600)
    found = specs(A={"file": str(file)}, B={"env": "X"})
    assert source_warnings(found) == []
    file.chmod(0o444)
    assert source_warnings(found) == ["s.json:1:3: A: its file can be read by every user of this machine (mode 0444)"]
    file.unlink()
    assert "No such file" in source_warnings(found)[0]


def test_secrets_files_that_cannot_be_read(tmp_path: Path) -> None:
    """An error with the path, never no secrets; a pipe must not hang."""
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "latin.toml").write_bytes(f'# one\n[A]\nvalue = "{VALUE}\xff"'.encode("latin-1"))
    (tmp_path / "huge.toml").write_text("#" * (1024 * 1024 + 1))
    (tmp_path / "bad.toml").write_text(f'[A]\nvalue = ["{VALUE}"]\nhosts = ["a.test"]')
    for name, where, says in (
        ("missing.toml", "", "No such file"),
        ("pipe.toml", "", "not a regular file"),
        ("", "", "not a regular file"),
        ("latin.toml", ":3", "not UTF-8"),
        ("huge.toml", "", "1 MiB"),
        ("bad.toml", ":2:1", "value is a list"),
    ):
        path = str(tmp_path / name)
        with pytest.raises(ConfigError) as caught:
            load_secrets_file(path)
        assert says in caught.value.public
        assert caught.value.where == path + where
        assert VALUE not in f"{caught.value} {caught.value!r}"


SEALED = """
import os, sys, threading
from exeat.errors import ConfigError
from exeat.run.sealing import seal_imports
from exeat.secrets.setup.config import parse_secrets
from exeat.secrets.setup.values import fetch, fetch_one

def spec(argv, timeout_s=20):
    import json
    table = {"A": {"command": argv, "timeout_s": timeout_s, "hosts": ["a.test"]}}
    return parse_secrets(json.dumps(table), "s.json")[0]

good, bad, slow, gone = spec(["echo", "renewed"]), spec(["false"]), spec(["sleep", "60"], 0.2), spec(["exeat-no-such"])
fetch([good], os.environ)
seal_imports()
before = set(sys.modules)

def renew():
    print(fetch_one(good, os.environ))
    for each in (bad, slow, gone):
        try:
            fetch_one(each, os.environ)
        except ConfigError as error:
            print(error.public)

thread = threading.Thread(target=renew)
thread.start()
thread.join()
print(set(sys.modules) - before)
"""


def test_renewal_in_a_thread_loads_no_code() -> None:
    """The gateway has given up loading code by then."""
    ran = subprocess.run([sys.executable, "-c", SEALED], capture_output=True, text=True, check=True, timeout=50)
    assert ran.stdout.splitlines() == [
        "b'renewed'",
        "A: its command ended with status 1",
        "A: its command did not end within 0.2 s",
        "A: its command cannot be started: No such file or directory",
        "set()",
    ]
    assert ran.stderr == ""
