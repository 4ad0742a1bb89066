"""exeat as files: all of it, nothing of others, and the same bytes every time."""

from __future__ import annotations

import io
import tarfile
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest

import exeat
from exeat.container import installed as module
from exeat.container.installed import Installed, InstalledFile, as_tar, compiled_modules
from exeat.errors import ConfigError


def test_all_of_exeat_is_there_and_what_it_needs_to_run() -> None:
    found = {file.name: file.content for file in Installed().files()}
    own = Path(exeat.__file__).parent
    sources = {path.relative_to(own.parent).as_posix() for path in own.rglob("*.py")}
    assert sources <= found.keys()
    assert found["exeat/sandbox/default-allowlist.txt"] == (own / "sandbox" / "default-allowlist.txt").read_bytes()
    for needed in ("uvloop", "cryptography", "cffi", "hpack", "idna", "backports/zstd"):
        assert f"{needed}/__init__.py" in found, needed
    assert {"uvloop.loop", "_brotli", "_cffi_backend"} <= set(compiled_modules(Installed().files()))


def test_nothing_of_tests_and_tools_comes_along() -> None:
    """The extra `dev` is installed next to these tests, and none of it goes into an image."""
    names = [file.name for file in Installed().files()]
    assert not [name for name in names if name.split("/")[0] in ("pytest", "_pytest", "mypy", "requests", "ruff")]
    assert not [
        name for name in names if "__pycache__" in name or name.startswith(("/", "..")) or name.endswith(".pth")
    ]


def test_the_digest_is_that_of_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Installed().digest()
    assert Installed().digest() == before
    own = list(module._own_files())
    changed = [(name, content + b"#" if name == "exeat/errors.py" else content) for name, content in own]
    monkeypatch.setattr(module, "_own_files", lambda: changed)
    assert Installed().digest() != before


def test_the_archive_is_the_same_every_time() -> None:
    files = [InstalledFile("a/b.py", b"1"), InstalledFile("c.py", b"22")]
    archive = as_tar(files)
    assert archive == as_tar(files)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert [(item.name, item.size, item.mode, item.uid) for item in tar] == [
            ("a/b.py", 1, 0o644, 0),
            ("c.py", 2, 0o644, 0),
        ]


def test_nothing_says_where_a_package_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an editable install the folder of exeat is someone's working copy, and has what lies around in it."""
    notes = tmp_path / "one-1.dist-info"
    own = tmp_path / "exeat"
    for folder in (notes, own):
        folder.mkdir()
    (notes / "direct_url.json").write_text('{"url": "https://user:password@index.test/one.whl"}')
    (notes / "METADATA").write_text("Name: one")
    (notes / "RECORD").write_text("one-1.dist-info/METADATA,,\none-1.dist-info/direct_url.json,,\n")
    (own / "__init__.py").write_text("")
    (own / ".env").write_text("TOKEN=value")
    monkeypatch.setattr(exeat, "__file__", str(own / "__init__.py"))
    package = Distribution.at(notes)
    monkeypatch.setattr(module, "_needed", lambda _: [package])
    assert [file.name for file in Installed().files()] == ["exeat/__init__.py", "one-1.dist-info/METADATA"]


class _Package:
    def __init__(self, name: str, requires: list[str], files: list[Path] | None = None) -> None:
        self.metadata = {"Name": name}
        self.requires = requires
        self.files = files


def _with_packages(monkeypatch: pytest.MonkeyPatch, *packages: _Package) -> None:
    known = {each.metadata["Name"]: each for each in packages}

    def find(name: str) -> Distribution:
        if name not in known:
            raise PackageNotFoundError(name)
        return known[name]  # type: ignore[return-value]

    monkeypatch.setattr(module, "distribution", find)


def test_requirements_are_followed_and_extras_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_packages(
        monkeypatch,
        _Package("exeat", ["one>=1", "two; python_version < '3'", "tests>=2; extra == 'dev'"]),
        _Package("one", ["three[fast]<5,>=4.3", "one"]),
        _Package("three", []),
        _Package("tests", []),
    )
    assert sorted(each.metadata["Name"] for each in module._needed("exeat")) == ["one", "three"]


def test_a_missing_or_unlisted_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_packages(monkeypatch, _Package("exeat", ["gone>=1"]))
    with pytest.raises(ConfigError, match="needs gone, which is not here"):
        Installed()
    _with_packages(monkeypatch, _Package("exeat", ["bare"]), _Package("bare", []))
    monkeypatch.setattr(_Package, "read_text", lambda self, name: None, raising=False)
    with pytest.raises(ConfigError, match="bare was installed without a list"):
        Installed().files()
