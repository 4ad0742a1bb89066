"""What goes into a build, and what its checksum depends on."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import pytest

from exeat.container.images import image
from exeat.container.images.image import BuildOrder, Built, hardened_order, sandbox_order
from exeat.container.images.package_index import PackageIndex
from exeat.container.registry import Tool
from exeat.jail.container.images import Image

_BASE = Image("sha256:" + "a" * 64, "base:1", {"PATH": "/opt/bin:/bin", "LANG": "C.UTF-8"})
_BUILT = Built("exeat-hardened:0123", "sha256:" + "b" * 64)
_HASH = f"--hash=sha256:{'a' * 64}"


def _hardened(base: Image = _BASE, needed: tuple[str, ...] = (), index: PackageIndex | None = None) -> BuildOrder:
    return hardened_order(base, needed, index or PackageIndex(), "mark")


def _sandbox(*tools: Tool, name: str = "default", built: Built = _BUILT) -> BuildOrder:
    return sandbox_order(name, built, tools, "mark")


def _tool(name: str = "add", source: str = "def add(a): return a\n", **more: Any) -> Tool:
    return Tool(name, "default", source, is_async=False, **more)


def _settings(order: BuildOrder) -> Any:
    return json.loads(order.files["exeat-build/settings.json"])


def test_the_tag_changes_with_all_that_is_in_the_image() -> None:
    hardened = [
        _hardened().tag,
        _hardened(base=_BASE.replace(id="sha256:" + "c" * 64)).tag,
        _hardened(needed=("a",)).tag,
        _hardened(needed=("b",)).tag,
    ]
    sandbox = [
        _sandbox().tag,
        _sandbox(_tool()).tag,
        _sandbox(_tool(source="def add(a): return a + 1\n")).tag,
        _sandbox(_tool(name="plus")).tag,
        _sandbox(built=Built("exeat-hardened:4567", _BUILT.digest)).tag,
    ]
    assert len({*hardened, *sandbox}) == len(hardened) + len(sandbox)
    assert _sandbox(name="web").tag.startswith("exeat-sandbox-web:")


def test_the_tag_does_not_change_with_what_is_not() -> None:
    index = PackageIndex(environment={"PIP_INDEX_URL": "https://elsewhere.test/"})
    assert _hardened(needed=("a",), index=index).tag == _hardened(needed=("a",)).tag
    assert _hardened(base=_BASE.replace(name="another:name")).tag == _hardened().tag
    assert hardened_order(_BASE, (), PackageIndex(), "another mark").tag == _hardened().tag
    digest_of_another_engine = Built(_BUILT.tag, "sha256:" + "c" * 64)
    assert _sandbox(built=digest_of_another_engine).tag == _sandbox().tag


def test_the_harness_is_part_of_the_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _sandbox()
    monkeypatch.setattr(image, "read_harness", lambda: b"another")
    assert _sandbox().tag != before.tag
    assert _sandbox().files["exeat/harness.py"] == b"another" != before.files["exeat/harness.py"]


def test_the_context_is_the_same_tar_each_time() -> None:
    order = _sandbox(_tool(), _tool("plus"))
    assert order.context() == order.context()
    with tarfile.open(fileobj=io.BytesIO(order.context())) as archive:
        assert {entry.name: (entry.mode, entry.uid, entry.mtime) for entry in archive} == dict.fromkeys(
            ("Dockerfile", "check_tools.py", "exeat/harness.py", "exeat/tools/add.py", "exeat/tools/plus.py",
             "exeat/tools/manifest.json"), (0o644, 0, 0)
        )  # fmt: skip


def test_the_manifest_says_where_each_tool_is() -> None:
    tools = json.loads(_sandbox(_tool()).files["exeat/tools/manifest.json"])["tools"]
    assert tools == {"add": {"file": "add.py", "function": "add", "is_async": False}}


@pytest.mark.threat("T-O1")
def test_the_image_is_made_of_nothing_but_a_copy() -> None:
    """So that no layer of the base is in it."""
    lines = _hardened().dockerfile.splitlines()
    last = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert last[0] == "FROM scratch"
    assert [line for line in last if line.startswith(("COPY", "ADD", "RUN"))] == ["COPY --from=prepared / /"]
    assert "USER sandbox" in last


@pytest.mark.threat("T-O2")
def test_passwords_for_the_index_are_in_no_instruction_and_only_in_a_file_of_the_first_stage() -> None:
    secret = {"PIP_INDEX_URL": "https://me:hunter2@index.test/simple"}
    order = _hardened(needed=("a",), index=PackageIndex(environment=secret))
    assert "hunter2" not in order.dockerfile
    assert [name for name, content in order.files.items() if b"hunter2" in content] == ["exeat-build/settings.json"]
    assert "hunter2" not in repr(order)
    assert _settings(_hardened(index=PackageIndex(environment=secret)))["environment"] == {}  # nothing to install
    base = _BASE.replace(variables={**_BASE.variables, "PIP_INDEX_URL": "https://me:hunter2@index.test"})
    assert "hunter2" not in _hardened(base=base).dockerfile


def test_there_is_a_network_only_for_packages_from_elsewhere() -> None:
    offline = PackageIndex(needs_network=False)
    assert not _hardened().needs_network
    assert not _hardened(needed=("a",), index=offline).needs_network
    assert _hardened(needed=("a",)).needs_network
    assert _hardened(needed=("a @ https://files.test/a.whl",), index=offline).needs_network
    assert not _sandbox(_tool()).needs_network


def test_hashes_are_checked_where_they_are_given() -> None:
    assert _settings(_hardened(needed=(f"a==1 {_HASH}",)))["has_hashes"]
    assert not _settings(_hardened(needed=("a==1",)))["has_hashes"]


def test_variables_of_the_base_reach_the_image_as_they_are() -> None:
    base = _BASE.replace(variables={"ODD": 'a "b" $HOME \\ c', "TWO\nLINES": "x", "NEW": "a\nRUN evil"})
    assert 'ODD="a \\"b\\" \\$HOME \\\\ c"' in _hardened(base=base).dockerfile
    assert 'PATH="/usr/local/sbin:' in _hardened(base=base).dockerfile
    assert "evil" not in _hardened(base=base).dockerfile
    assert 'PATH="/opt/bin:/bin" LANG="C.UTF-8"' in _hardened().dockerfile


def test_a_base_that_is_not_roots_is_prepared_by_root() -> None:
    assert "USER 0:0" in _hardened(base=_BASE.replace(user="app")).dockerfile
    assert "USER 0:0" not in _hardened().dockerfile
