"""Files of clients that change under a running gateway: read when they have, and in force whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.serve import client_files
from exeat.serve.client_files import ClientFiles
from exeat.serve.clients import Client
from exeat.sources import read_text


def _text(name: str, network: str, allow: str = "example.com") -> str:
    entry = {"networks": [network], "credential": f"a-long-value-for-{name}-alone", "allow": [allow]}
    return json.dumps({"clients": {name: entry}})


def _write(path: Path, text: str) -> None:
    """In the same length the same file is not the same stamp: a rename makes another one."""
    draft = path.with_name(".draft")
    draft.write_text(text)
    draft.replace(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(("one", "two", "three")):
        _write(tmp_path / f"{name}.json", _text(name, f"10.{number}.0.0/16"))
    return tmp_path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that are read, one after the other."""
    seen: list[str] = []
    real = read_text

    def note(path: str, expected: str) -> str:
        seen.append(Path(path).name)
        return real(path, expected)

    monkeypatch.setattr(client_files, "read_text", note)
    return seen


def test_only_what_has_changed_is_read_again(folder: Path, read: list[str]) -> None:
    files = ClientFiles(str(folder))
    assert files.refresh() == {"one", "two", "three"}
    assert files.refresh() == set()
    _write(folder / "two.json", _text("two", "10.1.0.0/16", "other.example"))
    (folder / "three.json").unlink()
    _write(folder / "four.json", _text("four", "10.2.0.0/16"))
    read.clear()
    assert files.refresh() == {"two", "three", "four"}
    assert sorted(read) == ["four.json", "two.json"]
    assert sorted(files.clients) == ["four", "one", "two"]


def test_of_files_that_are_named_no_other_is_looked_at(folder: Path, read: list[str]) -> None:
    files = ClientFiles(str(folder))
    files.refresh()
    for name, network in (("one", "10.0.0.0/16"), ("two", "10.1.0.0/16")):
        _write(folder / f"{name}.json", _text(name, network, "other.example"))
    read.clear()
    assert files.refresh({f"{folder}/one.json"}) == {"one"}
    assert read == ["one.json"]
    assert files.refresh() == {"two"}


@pytest.mark.threat("T-S2")
@pytest.mark.parametrize(
    "text",
    [
        "{",
        _text("two", "10.9.0.0/16"),  # in another file too
        _text("new", "10.1.2.0/24"),  # in the network of another
        _text("new", "10.9.0.0/16").replace("for-new-", "for-two-"),  # with the credential of another
    ],
)
@pytest.mark.parametrize("is_named", [True, False])
def test_what_is_broken_changes_nothing_and_is_looked_at_again(folder: Path, text: str, is_named: bool) -> None:
    """A change that is in order does not come into force next to one that is not: there are no clients in part."""
    files = ClientFiles(str(folder))
    files.refresh()
    before = dict(files.clients)
    _write(folder / "one.json", text)
    _write(folder / "three.json", _text("three", "10.2.0.0/16", "other.example"))
    for _ in range(2):
        with pytest.raises(ConfigError):
            files.refresh({f"{folder}/one.json", f"{folder}/three.json"} if is_named else None)
        assert files.clients == before
    with pytest.raises(ConfigError):
        files.refresh({f"{folder}/three.json"})
    assert files.clients == before
    _write(folder / "one.json", _text("one", "10.0.0.0/16", "third.example"))
    assert files.refresh({f"{folder}/one.json"}) == {"one", "three"}
    assert files.clients["three"] != before["three"]


@pytest.mark.threat("T-S2")
def test_networks_and_names_go_from_one_file_to_another(folder: Path) -> None:
    files = ClientFiles(str(folder))
    files.refresh()
    _write(folder / "one.json", _text("two", "10.0.0.0/16"))
    _write(folder / "two.json", _text("one", "10.1.0.0/16"))
    assert files.refresh() == {"one", "two"}
    assert {name: str(client.networks[0]) for name, client in files.clients.items()} == {
        "two": "10.0.0.0/16",
        "one": "10.1.0.0/16",
        "three": "10.2.0.0/16",
    }


def test_a_client_that_is_refused_changes_nothing(folder: Path) -> None:
    refused: list[str] = []

    def check(client: Client) -> None:
        if client.name in refused:
            raise ConfigError("it is refused")

    files = ClientFiles(str(folder), check)
    files.refresh()
    refused.append("one")
    assert files.refresh() == set(), "it was checked when it was read"
    _write(folder / "one.json", _text("one", "10.0.0.0/16", "other.example"))
    with pytest.raises(ConfigError, match="it is refused"):
        files.refresh()


def test_a_single_file_that_goes_is_an_error(tmp_path: Path) -> None:
    """A folder without a file has no clients; a file that is not there says nothing of its clients."""
    path = tmp_path / "clients.json"
    path.write_text(_text("one", "10.0.0.0/16"))
    files = ClientFiles(str(path))
    files.refresh()
    path.unlink()
    with pytest.raises(ConfigError):
        files.refresh()
    assert list(files.clients) == ["one"]


@pytest.mark.parametrize("is_watched", [True, False])
def test_looking(folder: Path, is_watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put there is seen at once, where no one else tells; what was written in place is seen in turns."""
    monkeypatch.setattr(client_files, "_LOOKED_AT", 2)
    files = ClientFiles(str(folder))
    files.refresh()

    def looks(times: int) -> list[bool]:
        return [files.look(is_watched=is_watched) for _ in range(times)]

    assert looks(4) == [True, False, False, False]
    (folder / "two.json").write_text(_text("two", "10.1.0.0/16", "longer.example.com"))
    assert sorted(looks(2)) == [False, True]
    assert looks(2) == [False, False]
    _write(folder / "four.json", _text("four", "10.4.0.0/16"))
    if is_watched:
        assert files.refresh({f"{folder}/four.json"}) == {"four"}, "someone tells"
    assert looks(2) == [not is_watched, False]
    (folder / "notes.txt").write_text("no file of clients")
    assert True not in looks(2)


@pytest.mark.threat("T-S2")
def test_what_no_one_tells_of_is_seen_all_the_same(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of a link that is made the kernel says no more than of a draft, and of what another host does nothing at all."""
    files = ClientFiles(str(folder))
    files.refresh()
    while files.look(is_watched=True):
        pass
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "four.json"
    elsewhere.write_text(_text("four", "10.4.0.0/16"))
    (folder / "four.json").symlink_to(elsewhere)
    assert files.look(is_watched=True)
    assert files.refresh() == {"four"}
    assert not files.look(is_watched=True)
    (folder / "one.json").unlink()
    assert files.look(is_watched=True)
    assert files.refresh() == {"one"}
    _write(folder / "broken.json", "{")
    with pytest.raises(ConfigError):
        files.refresh({f"{folder}/broken.json"})
    assert not files.look(is_watched=True), "it is known, and read again with the next change"
    elsewhere.write_text(_text("four", "10.4.0.0/16", "longer.example.com"))
    assert files.look(is_watched=True)
