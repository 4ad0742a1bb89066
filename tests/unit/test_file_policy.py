"""What is said about files in several places becomes one policy, or an error that names the place."""

from __future__ import annotations

import subprocess
import sys

import pytest

from exeat.errors import ConfigError
from exeat.file_policy import VIEW, FilePolicy, FileSettings, combine

OPTIONS = FileSettings()


def test_nothing_said_is_the_view() -> None:
    assert combine(OPTIONS) == VIEW == FilePolicy()
    assert (VIEW.mode, VIEW.layer_bytes, VIEW.nest) == ("view", 8 << 30, False)


def test_lists_add_up_in_order_each_path_once() -> None:
    found = combine(
        FileSettings(write=("a", "b"), hide=("h",)),
        [FileSettings("one.toml", write=("b", "c"), show=("s",)), FileSettings("two.toml", read_only=("r",))],
    )
    assert found == FilePolicy(write=("a", "b", "c"), hide=("h",), show=("s",), read_only=("r",))


def test_an_option_wins_over_files() -> None:
    file = FileSettings("one.toml", mode="host", layer_bytes=1 << 20, nest=False)
    assert combine(OPTIONS, [file]) == FilePolicy(mode="host", layer_bytes=1 << 20)
    found = combine(FileSettings(mode="view", layer_bytes=2 << 20, nest=True), [file])
    assert found == FilePolicy(mode="view", layer_bytes=2 << 20, nest=True)


@pytest.mark.parametrize(
    ("one", "two", "key", "option"),
    [
        ({"mode": "view"}, {"mode": "host"}, "mode", "--files"),
        ({"layer_bytes": 1 << 20}, {"layer_bytes": 2 << 20}, "layer_size", "--layer-size"),
        ({"nest": True}, {"nest": False}, "nest", "--nest"),
        ({"nest": False}, {"nest": True}, "nest", "--nest"),
    ],
)
def test_files_must_agree(one: dict[str, object], two: dict[str, object], key: str, option: str) -> None:
    first, second = FileSettings("one.toml", **one), FileSettings("two.toml", **two)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as refused:
        combine(OPTIONS, [first, second])
    assert str(refused.value).startswith(f"two.toml: files.{key}: this contradicts one.toml: files.{key}")
    assert option in refused.value.expected
    combine(OPTIONS, [first, first])  # the control


@pytest.mark.parametrize("key", ["hide", "read_only"])
def test_nothing_is_kept_from_a_command_that_has_the_files_of_the_host(key: str) -> None:
    """Wherever either was said: it would be believed."""
    kept = FileSettings("one.toml", **{key: ("a",)})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="files of the host") as refused:
        combine(FileSettings(mode="host"), [kept])
    assert refused.value.where == f"one.toml: files.{key}"
    assert combine(OPTIONS, [kept]).mode == "view"
    assert combine(FileSettings(mode="host", write=("a",), show=("b",))).mode == "host"


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ({}, ""),
        ({"mode": "host"}, ""),
        ({"nest": False}, ""),
        ({"mode": "view"}, "--files"),
        ({"write": ("a",)}, "--write"),
        ({"read_only": ("a",)}, "--read-only"),
        ({"hide": ("a",)}, "--hide"),
        ({"show": ("a",)}, "--show"),
        ({"layer_bytes": 1}, "--layer-size"),
        ({"nest": True}, "--nest"),
    ],
)
def test_what_has_no_meaning_without_a_view_is_named(said: dict[str, object], where: str) -> None:
    assert FileSettings(**said).needs_view == where  # type: ignore[arg-type]


def test_a_run_does_not_load_the_policy_for_it() -> None:
    """Start-up is a feature: every run needs these values before its jail is built."""
    program = (
        "import sys\nfrom exeat.cli.main import build_parser\nbuild_parser('run')\n"
        "import exeat.run.main, exeat.run.lifecycle, exeat.run.viewed_files, exeat.jail.bodies.netns\n"
        "print(sorted({'exeat.policy', 'dataclasses', 'tomllib', 'pathlib'} & set(sys.modules)),"
        " 'exeat.file_policy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "[] True\n"
