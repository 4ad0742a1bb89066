"""Placeholders that are kept: the same for the same secret of the same sandbox, and for no other."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from exeat.errors import ConfigError
from exeat.sandbox.changes import reset
from exeat.sandbox.folder import SandboxFolder, open_sandbox, remove_sandbox
from exeat.sandbox.placeholders import KeptPlaceholders
from exeat.secrets.setup.config import parse_secrets
from exeat.secrets.setup.placeholder import fits_shape, make_placeholder
from exeat.secrets.setup.values import fetch

SHAPES = ("", "jwt", "uuid", "aws-key-id", "64", "sk-", "ghp_")


def settle(folder: SandboxFolder, **shapes: str) -> dict[str, bytes]:
    """As a run with these secrets does it."""
    secrets = {name: {"value": f"value-of-{name}-0123", "hosts": ["a.test"], "shape": shape or 40}
               for name, shape in shapes.items()}  # fmt: skip
    specs = parse_secrets(json.dumps(secrets), "s.json")
    kept = KeptPlaceholders(folder, {each.name: each.shape for each in specs})
    return {each.name: each.placeholder for each in fetch(specs, {}, kept.settle)}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_made_fits_its_shape_and_no_other(shape: str) -> None:
    made = make_placeholder(shape, "NAME")
    assert [each for each in SHAPES if fits_shape(each, made)] == [shape]
    assert not fits_shape(shape, made + b"x")
    assert not fits_shape(shape, b"")


def test_the_same_secret_has_the_same_placeholder(folder: SandboxFolder, home: Path) -> None:
    first = settle(folder, ONE="sk-", TWO="uuid")
    assert first["ONE"] != first["TWO"]
    assert settle(folder, TWO="uuid", ONE="sk-") == first
    assert settle(folder, ONE="sk-") == {"ONE": first["ONE"]}
    assert settle(folder, ONE="sk-", TWO="uuid", THREE="jwt")["TWO"] == first["TWO"]
    file = home / "sandboxes" / folder.name / "placeholders.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with open_sandbox("other", create=True) as other:
        assert not set(settle(other, ONE="sk-", TWO="uuid").values()) & set(first.values())


def test_another_shape_is_another_placeholder(folder: SandboxFolder) -> None:
    first = settle(folder, ONE="sk-", TWO="uuid")
    second = settle(folder, ONE="ghp_", TWO="uuid")
    assert second["ONE"].startswith(b"ghp_")
    assert second["TWO"] == first["TWO"]
    assert settle(folder, ONE="sk-")["ONE"] != first["ONE"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '{"ONE": 7}',
        '{"ONE": ["sk-"]}',
        '{"ONE": ["sk-", "a"]}',
        '{"ONE": ["sk-", "ü"]}',
        "[" * 9000,
    ],
)
def test_what_is_no_placeholder_is_not_used(text: str, folder: SandboxFolder, home: Path) -> None:
    """Written by another version, or by hand: a letter as a placeholder would be replaced everywhere."""
    file = home / "sandboxes" / folder.name / "placeholders.json"
    file.write_text(text)
    file.chmod(0o600)
    made = settle(folder, ONE="sk-")
    assert fits_shape("sk-", made["ONE"])
    assert settle(folder, ONE="sk-") == made


def test_one_that_gives_a_value_away_is_not_used_again(folder: SandboxFolder) -> None:
    """The value may have become what the placeholder was."""
    first = settle(folder, ONE="sk-")["ONE"].decode()
    (spec,) = parse_secrets(json.dumps({"ONE": {"value": first, "hosts": ["a.test"], "shape": "sk-"}}), "s.json")
    (secret,) = fetch([spec], {}, KeptPlaceholders(folder, {"ONE": "sk-"}).settle)
    assert secret.placeholder.decode() != first


@pytest.mark.parametrize("what", ["link", "fifo", "open to others"])
def test_a_file_that_is_not_ours_is_refused(what: str, folder: SandboxFolder, home: Path, tmp_path: Path) -> None:
    file = home / "sandboxes" / folder.name / "placeholders.json"
    if what == "link":
        (tmp_path / "elsewhere").write_text("{}")
        file.symlink_to(tmp_path / "elsewhere")
    elif what == "fifo":
        os.mkfifo(file, 0o600)
    else:
        file.write_text("{}")
        file.chmod(0o666)
    with pytest.raises(ConfigError, match="not used"):
        settle(folder, ONE="sk-")
    with pytest.raises(ConfigError, match="not used"):
        open_sandbox(folder.name)


def test_they_go_with_the_sandbox_and_with_a_reset(folder: SandboxFolder, home: Path) -> None:
    first = settle(folder, ONE="sk-")
    reset(folder)
    second = settle(folder, ONE="sk-")
    assert second != first
    remove_sandbox(folder.name)
    assert not (home / "sandboxes" / folder.name).exists()
    with open_sandbox(folder.name, create=True) as again:
        assert settle(again, ONE="sk-") != second


def test_those_who_are_first_at_the_same_time_have_the_same(folder: SandboxFolder) -> None:
    together = Barrier(4)

    def one(number: int) -> Mapping[str, bytes]:
        with open_sandbox(folder.name) as mine:
            together.wait(20)
            return settle(mine, ONE="sk-", TWO="jwt")

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(4)))
    assert found == [found[0]] * 4
