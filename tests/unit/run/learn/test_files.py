"""`[files]` of a learned policy: the tightest folders, nothing that would run outside later, and text that holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.file_policy import VIEW, FilePolicy, FileSettings
from exeat.policy import parse_document
from exeat.policy.document import parse_listing
from exeat.run.learn.files import Surroundings, tightest_folders, with_files
from exeat.run.settings import FilesSeen

FOLDERS = {
    "/", "/home", "/home/me", "/home/you", "/home/me/.cache", "/home/me/.cache/pip", "/home/me/.cache/pip/http",
    "/home/me/other",
    "/home/me/other/src", "/home/me/.config", "/home/me/.config/tool", "/home/me/.local", "/home/me/.local/bin",
    "/home/me/bin", "/home/me/other/.git", "/home/me/other/.git/hooks", "/srv", "/srv/data", "/usr", "/usr/lib",
    "/usr/local/lib", "/usr/local", "/var", "/var/lib", "/etc", "/home/me/tools",
}  # fmt: skip
AROUND = Surroundings("/home/me", "/home/me/project", ("/usr/bin", "/home/me/tools"), FOLDERS.__contains__)
TEXT = 'allow = [\n  "good.test",  # 1x\n]\n\n[hosts]  # as given\n"a.test" = ["10.0.0.1"]\n'


def writes(*changed: str) -> tuple[str, ...]:
    return tightest_folders(changed, AROUND).write


@pytest.mark.parametrize(
    ("changed", "folder"),
    [
        ("/home/me/.cache/pip/http/a", "/home/me/.cache/pip/http"),
        ("/home/me/.cache/pip/new/a/b", "/home/me/.cache/pip"),
        ("/home/me/other/src/main.c", "/home/me/other/src"),
        ("/home/me/other/made/here", "/home/me/other"),
        ("/srv/data/a/b", "/srv/data"),
    ],
)
def test_the_tightest_folder_that_is_there(changed: str, folder: str) -> None:
    assert writes(changed) == (folder,)


def test_a_folder_within_another_is_not_named_twice() -> None:
    assert writes("/home/me/.cache/pip/http/a", "/home/me/.cache/pip/a", "/srv/data/x") == (
        "/home/me/.cache/pip",
        "/srv/data",
    )
    assert writes("/home/me/other/src/a", "/home/me/.cache/pip/a") == ("/home/me/.cache/pip", "/home/me/other/src")


@pytest.mark.parametrize(
    ("changed", "named", "why"),
    [
        ("/home/me/.bashrc", "/home/me/.bashrc", "too much to share"),
        ("/home/me/.new/a/b", "/home/me/.new", "too much to share"),
        ("/home/new/a", "/home/new", "too much to share"),
        ("/home/you/a", "/home/you", "outside your home"),
        ("/new/a", "/new", "too much to share"),
        ("/home/me/.cache/new/a", "/home/me/.cache", "too much to share"),
        ("/home/me/.config/tool/rc", "/home/me/.config/tool", "may act on files there"),
        ("/home/me/.local/bin/git", "/home/me/.local/bin", "run files there"),
        ("/home/me/bin/git", "/home/me/bin", "run files there"),
        ("/home/me/tools/git", "/home/me/tools", "run files there"),
        ("/home/me/other/.git/hooks/x", "/home/me/other/.git/hooks", "run files there"),
        ("/home/me/other/.git/config", "/home/me/other/.git", "may act on files there"),
        ("/usr/lib/a", "/usr/lib", "outside your home"),
        ("/usr/local/lib/a/b/c", "/usr/local", "outside your home"),
        ("/etc/cron.d/a", "/etc", "outside your home"),
        ("/srv/new/a", "/srv", "outside your home"),
    ],
)
def test_what_may_run_outside_is_not_proposed(changed: str, named: str, why: str) -> None:
    """It is named, with a reason, for someone to decide."""
    found = tightest_folders([changed], AROUND)
    assert found.write == ()
    [(path, count, reason)] = found.left_out
    assert (path, count) == (named, 1)
    assert why in reason


@pytest.mark.parametrize("path", ["/tmp/a/b", "/var/tmp/a", "/run/x", "/dev/shm/x"])
def test_what_a_run_has_for_itself_is_not_mentioned(path: str) -> None:
    assert tightest_folders([path], AROUND) == ((), ())


def test_the_text_is_a_policy_that_says_it() -> None:
    changed = ("/home/me/.cache/pip/http/a", "/home/me/.bashrc", "/usr/lib/a", "/usr/lib/b")
    text = with_files(TEXT, "toml", VIEW, FilesSeen(changed, tried=("/home/me/.netrc",)), AROUND)
    assert text.startswith(TEXT)
    assert text.endswith("\n")
    found = parse_document(text, "p.toml")
    assert found.files == FileSettings("p.toml", write=("~/.cache/pip/http",))
    assert (len(found.rules), len(found.hosts)) == (1, 1)
    assert "#   ~/.bashrc  1x  " in text
    assert "#   /usr/lib  2x  outside your home\n" in text
    assert "#   ~/.netrc\n" in text
    assert "show =" not in text  # a command that looks for a key is no reason to show it


def test_what_was_given_goes_on() -> None:
    policy = FilePolicy(
        write=("build", "~/.cache/pip/http"), hide=("/a",), read_only=("../x",), show=("~/b",), layer_bytes=1 << 20,
        nest=True,
    )  # fmt: skip
    text = with_files(TEXT, "toml", policy, FilesSeen(("/home/me/.cache/pip/http/a", "/srv/data/x")), AROUND)
    assert parse_document(text, "p.toml").files == FileSettings(
        "p.toml",
        write=("/home/me/project/build", "~/.cache/pip/http", "/srv/data"),
        read_only=("/home/me/project/../x",),
        hide=("/a",),
        show=("~/b",),
        layer_bytes=1 << 20,
        nest=True,
    )
    assert parse_document(
        with_files(TEXT, "toml", FilePolicy(mode="host"), FilesSeen(), AROUND), "p"
    ).files == FileSettings("p", mode="host")


def test_a_run_that_changed_nothing_leaves_the_text_alone() -> None:
    assert with_files(TEXT, "toml", VIEW, FilesSeen(), AROUND) == TEXT
    assert with_files(TEXT, "toml", VIEW, FilesSeen(("/tmp/x",)), AROUND) == TEXT
    assert with_files("", "toml", VIEW, FilesSeen(("/srv/data/x",)), AROUND) == ""


def test_a_list_names_the_options_in_comments() -> None:
    listing = "good.test  # 1x\n"
    text = with_files(listing, "txt", FilePolicy(nest=True, hide=("/a",)), FilesSeen(("/srv/data/x", "/etc/x")), AROUND)
    assert len(parse_listing(text, "p.txt")) == 1
    for line in ("#   --write /srv/data", "#   --hide /a", "#   --nest", "#   /etc  1x  outside your home"):
        assert f"{line}\n" in text


def test_it_is_bounded_and_says_so() -> None:
    many = tuple(f"/srv/data{number}/x" for number in range(80))
    around = AROUND._replace(is_folder=lambda path: path in FOLDERS or path.startswith("/srv/data"))
    text = with_files(TEXT, "toml", VIEW, FilesSeen(many, is_complete=False), around)
    files = parse_document(text, "p.toml").files
    assert files is not None
    assert len(files.write) == 50
    assert "# 30 more folders were changed" in text
    assert "# NOT COMPLETE: more files were changed than the 80" in text
    left = with_files(TEXT, "toml", VIEW, FilesSeen(tuple(f"/home/me/.a{n}" for n in range(50))), AROUND)
    assert "#   and 30 more\n" in left


def test_given_paths_that_no_policy_file_can_name_are_counted() -> None:
    """Not dropped without a word: someone would believe that they are hidden."""
    text = with_files(TEXT, "toml", FilePolicy(hide=("/a\udcff", "/b\u202e")), FilesSeen(), AROUND)
    assert "# NOT COMPLETE: 1 of the given paths" in text
    assert parse_document(text, "p").files == FileSettings("p", hide=("/b\u202e",))


def test_a_link_of_the_real_machine_is_no_folder(tmp_path: Path) -> None:
    """The command had a folder there, in its layer."""
    home = tmp_path.resolve()
    (home / "elsewhere").mkdir()
    (home / "link").symlink_to(home / "elsewhere")
    around = Surroundings(str(home), str(home / "project"))
    assert tightest_folders([f"{home}/elsewhere/a"], around).write == (f"{home}/elsewhere",)
    assert tightest_folders([f"{home}/link/a"], around).write == ()


@given(st.lists(st.text(min_size=1, max_size=20)), st.booleans())
def test_no_name_breaks_the_text(names: list[str], all_folders: bool) -> None:
    """A command chooses them: no name adds a key, a rule or a line of its own."""
    around = AROUND._replace(is_folder=lambda path: all_folders or path in FOLDERS)
    starts = ("/home/me/.cache/pip", "/home/me", "/srv/data", "")
    changed = tuple(f"{start}/{name}/x" for name in names for start in starts)
    text = with_files(TEXT, "toml", VIEW, FilesSeen(changed, tried=changed), around)
    found = parse_document(text.encode("utf-8", "replace").decode(), "p.toml")
    assert (len(found.rules), len(found.hosts), found.limits, found.secrets) == (1, 1, {}, None)
    assert found.files is None or found.files.show == ()
    listed = with_files("good.test\n", "txt", VIEW, FilesSeen(changed, tried=changed), around)
    assert len(parse_listing(listed, "p.txt")) == 1
