"""What a builder asks of an engine, and what it says when that goes wrong. Real engines: tests/containers."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exeat import BuildError, EngineError, Registry, SandboxBuilder, SandboxConfig
from exeat.container.images import building
from exeat.container.images.left_over import remove_build_steps
from exeat.engine import find
from exeat.engine.client import Engine
from exeat.engine.owner import OWNER, labels
from exeat.errors import ConfigError
from tests.unit.container.scripted_engine import ScriptedEngine, scripted

_DEAD = labels("build")[OWNER].rpartition(".")[0].rpartition(".")[0] + ".999999999.1"


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ScriptedEngine, Engine]]:
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with scripted(tmp_path) as found:
        yield found


def _registry(**settings: Any) -> Registry:
    registry = Registry()
    registry.register_sandbox(SandboxConfig("default", **{"base_image": "base:1", **settings}))
    return registry


def _ignore(_line: str) -> None: ...


def _ensure(engine: Engine, registry: Registry | None = None, said: list[str] | None = None) -> str:
    builder = SandboxBuilder(registry or _registry(), engine, on_progress=_ignore if said is None else said.append)
    return asyncio.run(builder.ensure_sandbox("default"))


def test_an_image_is_built_once_and_found_after_that(at: tuple[ScriptedEngine, Engine]) -> None:
    script, engine = at
    said: list[str] = []
    tag = _ensure(engine, said=said)
    assert tag.startswith("exeat-sandbox-default:")
    assert [query["t"][0].partition(":")[0] for query in script.builds] == ["exeat-hardened", "exeat-sandbox-default"]
    assert "Step 1" in said
    assert _ensure(engine) == tag
    assert len(script.builds) == 2


def test_builds_have_no_network_unless_packages_are_fetched(at: tuple[ScriptedEngine, Engine]) -> None:
    script, engine = at
    _ensure(engine)
    _ensure(engine, _registry(dependencies=["requests"]))
    assert [query["networkmode"] for query in script.builds] == [["none"], ["none"], ["default"], ["none"]]


def test_an_unknown_sandbox_asks_nothing_of_the_engine(at: tuple[ScriptedEngine, Engine]) -> None:
    builder = SandboxBuilder(_registry(), at[1])
    with pytest.raises(ValueError, match="there is no sandbox 'web': known are default"):
        asyncio.run(builder.ensure_sandbox("web"))
    with pytest.raises(ValueError, match="there is no sandbox 'web'"):
        asyncio.run(builder.ensure_network("web"))


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ([{"stream": "ERROR: no such package\n"}, {"error": "returned 1"}], "could not be built: returned 1"),
        ([{"stream": "exeat: the packages could not be installed\n"}, {"error": "x"}], "built: the packages could not"),
        # What Docker makes of a line on stderr.
        (
            [{"stream": "\x1b[91mexeat: the packages could not be installed\n"}, {"stream": "\x1b[0m"}, {"error": "x"}],
            "built: the packages could not be installed",
        ),
        ([{"error": 'runc: exec: "python3": executable file not found in $PATH'}], "its base image has no python3"),
        ([{"stream": r'msg="exec: \"python3\": executable file not found"'}, {"error": "x"}], "no python3"),
        ([{"stream": "OSError: [Errno 28] No space left on device\n"}, {"error": "x"}], "the engine's disk is full"),
        ([{"error": "write /data/x: no space left on device"}], "`docker system prune` frees it"),
    ],
)
def test_a_failed_build_says_why_and_has_its_log(
    at: tuple[ScriptedEngine, Engine], log: list[dict[str, Any]], why: str
) -> None:
    script, engine = at
    script.log = [{"stream": "Step 1 : FROM x\n"}, *log]
    with pytest.raises(BuildError, match=why) as caught:
        _ensure(engine)
    assert caught.value.log.startswith("Step 1 : FROM x\n")
    assert "[91m" not in caught.value.log
    assert "Step 1 : FROM x" in str(caught.value)
    assert len(script.builds) == 1


def test_an_engine_that_refuses_the_build_is_a_failed_build(at: tuple[ScriptedEngine, Engine]) -> None:
    script, engine = at
    body = json.dumps({"message": "mkdir /var/lib: no space left on device"}).encode()
    script.refusal = b"HTTP/1.1 500 X\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with pytest.raises(BuildError, match="the engine's disk is full"):
        _ensure(engine)


def test_a_build_that_ends_without_an_image_is_a_failed_one(at: tuple[ScriptedEngine, Engine]) -> None:
    script, engine = at
    script.refusal = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(BuildError, match="the engine made no image"):
        _ensure(engine)


@pytest.mark.threat("T-O2")
def test_passwords_are_not_in_the_log_nor_in_the_progress(
    at: tuple[ScriptedEngine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, engine = at
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:hunter2@index.test/simple")
    leak = "Looking in indexes: https://me:hunter2@index.test/simple"
    script.log = [{"stream": f"{leak}\n"}, {"error": f"failed: {leak}"}]
    said: list[str] = []
    with pytest.raises(BuildError) as caught:
        _ensure(engine, _registry(dependencies=["requests"]), said)
    assert "Looking in indexes: https://****@index.test/simple" in said
    assert "hunter2" not in f"{caught.value} {caught.value.log} {caught.value.detail} {said}"


@pytest.mark.threat("T-O2")
def test_what_a_package_prints_while_it_is_built_reaches_no_terminal_as_an_order(
    at: tuple[ScriptedEngine, Engine],
) -> None:
    script, engine = at
    script.log = [{"stream": "a\tb \x1b]0;owned\x07\x9b2J\u202e.\n"}, {"error": "failed \x1b[2J"}]
    said: list[str] = []
    with pytest.raises(BuildError) as caught:
        _ensure(engine, said=said)
    assert any(line.startswith("a") and "owned" in line for line in said)  # the control: it is shown
    shown = [*said, *caught.value.log.splitlines(), *str(caught.value).splitlines()]
    assert [line for line in shown if not line.isprintable()] == []


def test_a_base_image_that_cannot_be_fetched_is_named(at: tuple[ScriptedEngine, Engine]) -> None:
    with pytest.raises(RuntimeError, match=r"the image missing:1 is not here") as caught:
        _ensure(at[1], _registry(base_image="missing:1"))
    assert "manifest unknown" in str(caught.value)


def test_without_a_base_image_it_is_the_one_that_the_environment_names(
    at: tuple[ScriptedEngine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXEAT_IMAGE", "base:1")
    assert _ensure(at[1], _registry(base_image="")) == _ensure(at[1])
    monkeypatch.setenv("EXEAT_IMAGE", "missing:2")
    with pytest.raises(EngineError, match="missing:2"):
        _ensure(at[1], _registry(base_image=""))


def test_what_a_build_leaves_between_its_steps_is_removed_children_first(at: tuple[ScriptedEngine, Engine]) -> None:
    script, engine = at
    ours = labels("build")[OWNER]
    script.steps = [
        {"Id": "parent", "RepoTags": None, "Labels": {OWNER: _DEAD}},
        {"Id": "child", "ParentId": "parent", "RepoTags": ["<none>:<none>"], "Labels": {OWNER: _DEAD}},
        {"Id": "of-another-machine", "RepoTags": None, "Labels": {OWNER: f"elsewhere{_DEAD}"}},
        {"Id": "of-a-build-that-runs", "RepoTags": None, "Labels": {OWNER: ours}},
        {"Id": "finished", "RepoTags": None, "Labels": {OWNER: ""}},
        {"Id": "has-a-tag", "RepoTags": ["mine:1"], "Labels": {OWNER: _DEAD}},
        {"Id": "users-own", "RepoTags": None, "Labels": None},
    ]
    assert remove_build_steps(engine) == ["child", "parent"]
    assert script.removed == ["child", "parent"]


def test_a_caller_that_is_cancelled_stops_its_build(at: tuple[ScriptedEngine, Engine]) -> None:
    script, engine = at
    script.waits_for.clear()

    async def give_up() -> None:
        task = asyncio.create_task(SandboxBuilder(_registry(), engine).ensure_sandbox("default"))
        await asyncio.to_thread(script.is_building.wait)
        task.cancel()
        await asyncio.wait([task], timeout=0)  # the build is stopped here; its end waits for the engine's answers
        script.waits_for.set()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(give_up())
    assert len(script.builds) == 1


def test_two_callers_build_one_image(at: tuple[ScriptedEngine, Engine]) -> None:
    script, engine = at

    async def both() -> list[str]:
        builders = [SandboxBuilder(_registry(), engine) for _ in range(2)]
        return await asyncio.gather(*(builder.ensure_sandbox("default") for builder in builders))

    first, second = asyncio.run(both())
    assert first == second
    assert len(script.builds) == 2  # one of each image


def test_where_no_lock_can_be_had_it_is_built_all_the_same(
    at: tuple[ScriptedEngine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*, create: bool) -> None:
        raise ConfigError("read-only")

    monkeypatch.setattr(building, "open_home", refuse)
    assert _ensure(at[1])


def test_progress_is_for_a_person_at_a_terminal(
    at: tuple[ScriptedEngine, Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(SandboxBuilder(_registry(), at[1]).ensure_sandbox("default"))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("number", "in_container", "fix"),
    [
        (errno.ENOENT, False, "systemctl start docker"),
        (errno.ENOENT, True, "-v /var/run/docker.sock:/var/run/docker.sock"),
        (errno.EACCES, False, "usermod -aG docker"),
        (errno.ECONNREFUSED, False, "systemctl start docker"),
    ],
)
def test_an_engine_that_cannot_be_asked_is_a_runtime_error_with_what_to_do(
    number: int, in_container: bool, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(_self: Engine, _timeout_s: float | None) -> None:
        raise find.explain_no_socket("/var/run/docker.sock", OSError(number, "x"))

    monkeypatch.setattr(find, "is_in_container", lambda: in_container)
    monkeypatch.setattr(Engine, "connect", connect)
    with pytest.raises(RuntimeError) as caught:
        SandboxBuilder(_registry(), Engine("/var/run/docker.sock", "docker"))
    assert fix in str(caught.value)


def test_no_engine_at_all_is_said_when_the_builder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(RuntimeError, match="the engine's socket is not"):
        SandboxBuilder(_registry())
