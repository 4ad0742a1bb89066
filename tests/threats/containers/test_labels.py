"""Labels at an engine decide what is removed there. A container has those of its image, which may be hostile."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError
from exeat.engine.owner import INSIDE, KIND, OWNER, is_left_over, labels, remove_left_over
from tests.support.engines.fake_engine import answer, serving

_ELSEWHERE = "another-boot.1.2.3"
_SMUGGLED = "x/json HTTP/1.1\r\nHost: e\r\n\r\nPOST /containers/create?name=evil HTTP/1.1\r\nHost: e\r\n\r\nGET /y"


def _left_by_a_run() -> str:
    world = labels("run")[OWNER].rsplit(".", 2)[0]
    return f"{world}.{2**22 + 1}.1"


@pytest.mark.threat("T-E14")
def test_a_label_makes_no_request_at_the_engine(tmp_path: Path) -> None:
    """Whoever may send one has the machine. The label is that of a container that was made without exeat."""
    with serving(tmp_path / "s", lambda request: answer(404)) as requests:
        engine = Engine(str(tmp_path / "s"), "docker")
        assert is_left_over({OWNER: _ELSEWHERE, INSIDE: "f" * 64}, engine)  # the control: it is asked for
        assert len(requests) == 1
        assert not is_left_over({OWNER: _ELSEWHERE, INSIDE: _SMUGGLED}, engine)
    assert not any(b"evil" in each for each in requests)


@pytest.mark.threat("T-E14")
@pytest.mark.parametrize("name", [_SMUGGLED, "a b", "a\nb", "\u00e9", "\udc80"])
def test_no_name_ends_the_line_of_a_request(tmp_path: Path, name: str) -> None:
    with serving(tmp_path / "s", lambda request: answer(200, {"Id": "1"})) as requests:
        engine = Engine(str(tmp_path / "s"), "docker")
        assert engine.call("GET", "/images/docker.io/a_b.c:1-2@sha256:00/json") == {"Id": "1"}
        with pytest.raises(EngineError, match="cannot have such a name"):
            engine.call("GET", f"/images/{name}/json")
    assert len(requests) == 1


@pytest.mark.threat("T-E14")
def test_a_container_with_labels_of_its_image_is_someone_elses(tmp_path: Path) -> None:
    """Of a hostile image, or of one that was committed from a container of exeat's: both have an owner that is gone."""
    left = _left_by_a_run()
    images = {"plain": None, "committed": {OWNER: left}, "hostile": {OWNER: _ELSEWHERE, INSIDE: "f" * 64}}
    containers = {
        "left": ("plain", {KIND: "run", OWNER: left}),
        "left of hostile": ("hostile", {KIND: "run", OWNER: left, INSIDE: ""}),
        "of a build": ("committed", {KIND: "build", OWNER: left, INSIDE: ""}),
        "database": ("committed", {KIND: "run", OWNER: left}),
        "started by hand": ("hostile", {OWNER: _ELSEWHERE, INSIDE: "f" * 64}),
        "without an image": ("removed", {KIND: "run", OWNER: left}),
    }

    def reply(request: bytes) -> bytes:
        path = request.split()[1].decode()
        if path.startswith("/containers/json"):
            made = enumerate(containers.values())
            return answer(200, [{"Id": str(n), "ImageID": image, "Labels": each} for n, (image, each) in made])
        for image, found in images.items():
            if path == f"/images/{image}/json":
                return answer(200, {"Config": {"Labels": found}})
        return answer(404) if request.startswith(b"GET") else answer(204)

    with serving(tmp_path / "s", reply):
        removed = remove_left_over(Engine(str(tmp_path / "s"), "docker"))
    assert removed == ["/containers/0", "/containers/1", "/containers/2"]


@pytest.mark.threat("T-E14")
def test_an_image_says_nothing_about_where_a_run_is() -> None:
    """An exeat in a container would take a run of the machine for one of a container that is gone."""
    assert labels("run")[INSIDE] == ""
    assert not is_left_over({INSIDE: "f" * 64} | labels("run") | {OWNER: _ELSEWHERE}, Engine("/nonexistent", "docker"))


@pytest.mark.threat("T-E14")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: /proc of its own, and another user")
def test_a_run_that_may_not_be_seen_is_not_taken_for_gone() -> None:
    """With hidepid, or ProtectProc of systemd, users do not see each other's processes."""
    ours, left = labels("run"), {OWNER: _left_by_a_run()}
    child = os.fork()
    if child == 0:
        said = 1
        try:
            said = _look_from_behind(ours, left)
        finally:
            os._exit(said)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _look_from_behind(ours: dict[str, str], left: dict[str, str]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getppid()
    libc.unshare(0x00020000)  # mounts
    libc.mount(b"none", b"/", None, 0x44000, None)  # private, with all below
    if libc.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=2") != 0:
        return 2
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    if Path(f"/proc/{parent}").exists():
        return 3  # it proves nothing
    if is_left_over(ours):
        return 4
    return 0 if is_left_over(left) else 5
