"""The list of keys as it ships, and how it is read."""

from __future__ import annotations

import pytest

from exeat.files.keys.search import FULL_FOLDERS, KeyLine, load_key_list, parse_key_list

LIST = """\
# a comment

[keys]
~/.ssh
    keeps: config, *.pub
    used by: ssh, git
~/.config/gh
    for: gh
$KUBECONFIG
~/.gitconfig
    if it holds a secret

[root: passwords]
/etc/shadow
"""


def test_a_list_is_read() -> None:
    assert parse_key_list(LIST) == [
        KeyLine("~/.ssh", "keys", keeps=("config", "*.pub"), used_by=("ssh", "git")),
        KeyLine("~/.config/gh", "keys", program="gh", used_by=("gh",)),
        KeyLine("$KUBECONFIG", "keys"),
        KeyLine("~/.gitconfig", "keys", only_if_secret=True),
        KeyLine("/etc/shadow", "passwords", only_root=True),
    ]


def test_lines_that_begin_otherwise_are_passed_over() -> None:
    begins = {"~/.config/gh", "$KUBECONFIG", "/etc", "~/.config"}
    assert [line.path for line in parse_key_list(LIST, begins)] == ["~/.config/gh", "$KUBECONFIG", "/etc/shadow"]


@pytest.mark.parametrize(
    "line", ["relative/path", "~/.x\n    unless: it rains", "~/.x\n    keeps:", "~/.x\n    for: a, b"]
)
def test_a_line_that_says_nothing_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"keys\.txt"):
        parse_key_list(f"[keys]\n{line}\n")


def test_the_list_that_ships() -> None:
    """It can be read, says nothing twice, and a run finds every line of it by how it begins."""
    lines = load_key_list()
    paths = [line.path for line in lines]
    assert len(paths) == len(set(paths)) > 300
    assert all(line.why for line in lines)
    for line in lines:
        depth = next((len(full.split("/")) for full in FULL_FOLDERS if line.path.startswith(full)), 2)
        begin = "/".join(line.path.split("/")[: 1 if line.path[0] == "$" else depth])
        assert line in load_key_list({begin})
        assert line.path.count("*") <= 1
        if line.path[0] == "/":
            assert begin in ("/etc", "/var", "/tmp", "/crypto_keyfile.bin")
