"""`[files]` of a policy file: read whole or refused whole, with the place of the fault, and relative to the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.file_policy import FileSettings
from exeat.policy import parse_document
from exeat.sources import RuleSources

TOML = """\
allow = ["good.test"]

[files]
mode = "view"
write = ["build", "~/.cache/pip", "/srv/data"]
read_only = ["."]
hide = ["../notes"]
show = ["~/.netrc"]
layer_size = "2GB"
nest = true
"""
READ = FileSettings(
    "policy.toml",
    mode="view",
    write=("build", "~/.cache/pip", "/srv/data"),
    read_only=(".",),
    hide=("../notes",),
    show=("~/.netrc",),
    layer_bytes=2_000_000_000,
    nest=True,
)


def test_all_keys() -> None:
    assert parse_document(TOML, "policy.toml").files == READ


def test_json_says_the_same() -> None:
    table = {"mode": "view", "write": list(READ.write), "read_only": ["."], "hide": ["../notes"]}
    table |= {"show": ["~/.netrc"], "layer_size": 2_000_000_000, "nest": True}  # type: ignore[dict-item]
    assert parse_document(json.dumps({"files": table}), "policy.json").files == READ._replace(where="policy.json")


def test_a_policy_that_says_nothing_of_files() -> None:
    assert parse_document("allow = []", "policy.toml").files is None
    assert parse_document("[files]", "policy.toml").files == FileSettings("policy.toml")


REFUSED = [
    ("files = 1", "p.toml:1:9", "a number"),
    ("files = []", "p.toml:1:1", "a list"),
    ('[files]\nwirte = ["a"]', "p.toml:2:1", "'wirte' is not a key of files"),
    ('[files]\nread-only = ["a"]', "p.toml:2:1", "'read-only' is not a key of files"),
    ('[files]\nmode = "real"', "p.toml:2:9", "'real' is not a mode"),
    ("[files]\nmode = true", "p.toml:2:8", "files.mode is true or false"),
    ('[files]\nwrite = "a"', "p.toml:2:10", "files.write is a string"),
    ('[files]\nhide = ["a", 7]', "p.toml:2:14", "element 2 of files.hide is a number"),
    ('[files]\nhide = ["a", ""]', "p.toml:2:15", "an empty path"),
    ('[files]\nshow = ["a\\u0000b"]', "p.toml:2:10", "a path with a NUL"),
    ('[files]\nhide = ["~/a", "~", "~someone/b"]', "p.toml:2:22", "is not in your own home directory"),
    ('[files]\nnest = "yes"', "p.toml:2:9", "files.nest is a string"),
    ("[files]\nnest = 1", "p.toml:2:8", "files.nest is a number"),
    ("[files]\nlayer_size = true", "p.toml:2:14", "files.layer_size is true or false"),
    ("[files]\nlayer_size = 1.5", "p.toml:2:14", "files.layer_size is a number"),
    ("[files]\nlayer_size = 0", "p.toml:2:14", "not a layer size"),
    ('[files]\nlayer_size = "much"', "p.toml:2:15", "not a layer size"),
    ('[files]\nlayer_size = "2000000GB"', "p.toml:2:15", "not a layer size"),
]


@pytest.mark.parametrize(("text", "where", "said"), REFUSED)
def test_what_cannot_be_used_is_refused_with_its_place(text: str, where: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_document(text, "p.toml")
    assert (refused.value.where, said in refused.value.public) == (where, True), refused.value
    assert refused.value.expected


def test_paths_are_relative_to_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever exeat is started, and however the file is named."""
    tmp_path = tmp_path.resolve()
    folder, other = tmp_path / "project", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (tmp_path / "link").symlink_to(folder)
    (folder / "policy.toml").write_text(TOML)
    expected = READ._replace(
        write=(f"{folder}/build", "~/.cache/pip", "/srv/data"), read_only=(f"{folder}/.",), hide=(f"{folder}/../notes",)
    )
    for start, name in (
        (folder, "policy.toml"),
        (folder, "./policy.toml"),
        (other, "../project/policy.toml"),
        (other, str(folder / "policy.toml")),
        (other, "../link/policy.toml"),
    ):
        monkeypatch.chdir(start)
        assert RuleSources(files=(name,)).load().files == (expected._replace(where=name),)


def test_every_file_counts(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.toml").write_text("" if name == "b" else f'[files]\nwrite = ["/{name}"]')
    (tmp_path / "list.txt").write_text("good.test\n")
    files = tuple(str(tmp_path / name) for name in ("a.toml", "b.toml", "list.txt", "c.toml"))
    assert [each.write for each in RuleSources(files=files).load().files] == [("/a",), ("/c",)]
