"""What a sandbox keeps about files: written whole, read whole or refused whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.errors import ConfigError
from exeat.file_policy import FileSettings, as_toml
from exeat.policy import parse_document
from exeat.sandbox.file_settings import added_to, full_path, read_file_settings, update_file_settings, without
from exeat.sandbox.folder import open_sandbox, remove_sandbox

ALL = FileSettings(
    mode="view", write=("/a", "~/b"), read_only=("/c",), hide=("/d",), show=("/e",), layer_bytes=1 << 30, nest=False
)


def kept_in(home: Path) -> Path:
    return home / "sandboxes" / "box" / "files.toml"


def test_nothing_is_kept_at_first(home: Path) -> None:
    with open_sandbox("box", create=True) as folder:
        assert read_file_settings(folder) is None


def test_what_is_kept_is_read_again(home: Path) -> None:
    with open_sandbox("box", create=True) as folder:
        kept = update_file_settings(folder, lambda before: added_to(before, ALL))
        assert kept == ALL._replace(where=str(kept_in(home)))
        assert read_file_settings(folder) == kept
    assert kept_in(home).stat().st_mode & 0o777 == 0o600
    with open_sandbox("box") as folder:
        update_file_settings(folder, lambda before: added_to(before, FileSettings(write=("/f", "/a"), nest=True)))
        found = read_file_settings(folder)
    assert found == kept._replace(write=("/a", "~/b", "/f"), nest=True)


def test_what_is_forgotten_goes_and_so_does_an_empty_file(home: Path) -> None:
    with open_sandbox("box", create=True) as folder:
        update_file_settings(folder, lambda before: added_to(before, FileSettings(write=("/a", "/b"), hide=("/a",))))
        found = update_file_settings(folder, lambda before: without(before, ["/a"]))
        assert (found.write, found.hide) == (("/b",), ())
        with pytest.raises(ConfigError, match="'/a' is in no list"):
            update_file_settings(folder, lambda before: without(before, ["/a"]))
        update_file_settings(folder, lambda before: without(before, ["/b"]))
        assert not kept_in(home).exists()


def test_a_reset_does_without_what_is_there(home: Path) -> None:
    with open_sandbox("box", create=True) as folder:
        kept_in(home).write_text("nonsense")
        with pytest.raises(ConfigError):
            update_file_settings(folder, lambda before: before)
        update_file_settings(folder, lambda before: added_to(before, FileSettings(nest=True)), reset=True)
        found = read_file_settings(folder)
        assert found is not None
        assert found.nest


def test_what_no_run_could_have_is_not_kept(home: Path) -> None:
    with open_sandbox("box", create=True) as folder:
        with pytest.raises(ConfigError, match="files of the host"):
            update_file_settings(folder, lambda before: added_to(before, FileSettings(mode="host", hide=("/a",))))
        assert read_file_settings(folder) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[files]\nwrite = 1", "files.write is a number"),
        ("[file]\nwrite = []", "not a key of a policy"),
        ('allow = ["a.test"]\n[files]\n', "there is more in it than"),
        ("[limits]\nidle_s = 1\n", "there is more in it than"),
        ('[secrets.A]\nvalue = "x"\nhosts = ["a.test"]\n', "there is more in it than"),
        ('[files]\nhide = ["notes"]', "'notes' is relative"),
        ("nonsense", "not valid TOML"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(text: str, said: str, home: Path) -> None:
    """Someone edited it by hand. It is not taken for nothing."""
    with open_sandbox("box", create=True) as folder:
        kept_in(home).write_bytes(os.fsencode(text))
        kept_in(home).chmod(0o600)
        with pytest.raises(ConfigError) as refused:
            read_file_settings(folder)
    assert said in refused.value.public
    assert refused.value.where.startswith(str(kept_in(home)))


def test_a_link_in_its_place_is_refused(home: Path, tmp_path: Path) -> None:
    open_sandbox("box", create=True).close()
    (tmp_path / "other.toml").write_text("[files]\n")
    kept_in(home).symlink_to(tmp_path / "other.toml")
    with pytest.raises(ConfigError, match="symbolic link"):
        open_sandbox("box")


def test_it_goes_with_the_sandbox(home: Path) -> None:
    with open_sandbox("box", create=True) as folder:
        update_file_settings(folder, lambda before: added_to(before, ALL))
    remove_sandbox("box")
    assert not kept_in(home).parent.exists()


def test_paths_mean_the_same_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path = tmp_path.resolve()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    assert full_path("a") == f"{tmp_path}/real/a"
    assert full_path("../x/") == f"{tmp_path}/x"
    assert full_path(".") == f"{tmp_path}/real"
    assert full_path("..") == str(tmp_path)
    assert full_path("/") == "/"
    assert full_path("~/a") == "~/a"
    assert full_path(f"{tmp_path}/link/a") == f"{tmp_path}/real/a"
    assert full_path(f"{tmp_path}/link") == f"{tmp_path}/link"  # a link that is named is meant


_NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(st.lists(_NAMES.map(lambda name: f"/{name}"), min_size=1))
def test_any_path_survives_writing(paths: list[str]) -> None:
    """No path ends its string or its line, whatever it is called."""
    text = "".join(f"{line}\n" for line in as_toml(FileSettings(write=tuple(paths), hide=("~/x",))))
    assert parse_document(text, "p.toml").files == FileSettings("p.toml", write=tuple(paths), hide=("~/x",))
