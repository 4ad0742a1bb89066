"""The gateway image: built once, named by its content, and refused with a sentence where it cannot work."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from exeat.container.gateway_image import default_base, ensure_gateway_image, split_tag
from exeat.engine.client import Engine
from exeat.engine.errors import BuildError, EngineError, NotFoundError
from exeat.errors import ConfigError


class _Engine(Engine):
    """Images by name, and a build that does what it is told."""

    def __init__(self, *images: str) -> None:
        super().__init__("/nowhere", "docker")
        self.images = {name: f"sha256:{number:04}" for number, name in enumerate(images)}
        self.builds: list[dict[str, bytes]] = []
        self.said: list[dict[str, Any]] = [{"stream": "Step 1"}, {"aux": {"ID": "sha256:built"}}]
        self.pull: list[dict[str, Any]] = []
        self.pulled: list[object] = []
        self.looked_for_steps = 0
        self.volumes: dict[str, Any] = {}
        self.on_lock: Callable[[], object] = lambda: None

    def call(self, method: str, path: str, *, query: Mapping[str, object] | None = None, **rest: Any) -> Any:
        name = path.removeprefix("/images/").removesuffix("/json").removesuffix("/tag")
        if path.endswith("/tag"):
            assert query is not None
            self.images[f"{query['repo']}:{query['tag']}"] = name
            return None
        if path == "/volumes/create":
            self.on_lock()
            return self.volumes.setdefault(rest["body"]["Name"], rest["body"])
        if path == "/images/json":
            self.looked_for_steps += 1
            return []
        if path.startswith("/volumes/"):
            return self.volumes[path.removeprefix("/volumes/")]
        if name not in self.images:
            raise NotFoundError(f"no such image: {name}", status=404)
        return {"Id": self.images[name]}

    def raw(self, method: str, path: str, **rest: Any) -> bytes:
        assert method == "DELETE"
        del self.volumes[path.removeprefix("/volumes/")]
        return b""

    def stream(self, method: str, path: str, *, data: Any = None, **rest: Any) -> Iterator[dict[str, Any]]:
        if path == "/images/create":
            self.pulled.append(rest["query"])
            yield from self.pull
            return
        assert rest["query"]["networkmode"] == "none"
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            self.builds.append({item.name: tar.extractfile(item).read() for item in tar})  # type: ignore[union-attr]
        yield from self.said


def test_it_is_built_when_it_is_missing_and_only_then() -> None:
    engine = _Engine("base:1")
    seen: list[str] = []
    tag = ensure_gateway_image(engine, "base:1", seen.append)
    assert tag.startswith("exeat-gateway:")
    assert engine.images[tag] == "sha256:built"
    assert seen == ["Step 1"]
    assert ensure_gateway_image(engine, "base:1") == tag
    assert len(engine.builds) == 1


def test_another_base_is_another_image() -> None:
    engine = _Engine("base:1", "base:2")
    assert ensure_gateway_image(engine, "base:1") != ensure_gateway_image(engine, "base:2")


def test_what_it_is_made_of() -> None:
    engine = _Engine("base:1")
    ensure_gateway_image(engine, "base:1")
    context = engine.builds[0]
    lines = context["Dockerfile"].decode().splitlines()
    assert lines[0] == "FROM base:1"
    assert [line for line in lines if line.startswith("USER")][-1] == "USER 65532:65532"
    assert any(line.startswith("HEALTHCHECK") and "exeat.serve.health" in line for line in lines)
    assert not [line for line in lines if line.startswith("RUN") and "[" not in line], "a base may have no shell"
    assert "exeat/exeat/cli/main.py" in context
    assert "exeat/uvloop/__init__.py" in context


def test_whoever_was_slower_finds_it_built() -> None:
    engine = _Engine("base:1")
    tag = ensure_gateway_image(engine, "base:1")
    other = _Engine("base:1")
    other.on_lock = lambda: other.images.setdefault(tag, "sha256:theirs")
    assert ensure_gateway_image(other, "base:1") == tag
    assert other.images[tag] == "sha256:theirs"
    assert other.builds == []
    assert not other.volumes, "and the lock is given back"


def test_a_missing_base_is_fetched_and_one_that_cannot_be_is_named() -> None:
    engine = _Engine()
    engine.pull = [{"status": "Pulling"}, {"error": "denied", "errorDetail": {}}]
    with pytest.raises(EngineError, match="base:7 is not here and could not be pulled") as caught:
        ensure_gateway_image(engine, "host:5000/base:7")
    assert "--base" in caught.value.fix
    assert engine.pulled == [{"fromImage": "host:5000/base:7"}]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            [{"stream": "exeat: it has Python 3.9.2 (.cpython-39.so), and exeat\n"}, {"error": "returned 1"}],
            "it has Python 3.9.2",
        ),
        ([{"error": 'exec: "python3": executable file not found in $PATH'}], "it has no python3"),
    ],
)
def test_a_base_that_does_not_fit_is_refused_with_the_reason(said: list[dict[str, Any]], sentence: str) -> None:
    engine = _Engine("base:1")
    engine.said = said
    with pytest.raises(ConfigError, match=f"cannot be built on base:1: {sentence}") as caught:
        ensure_gateway_image(engine, "base:1")
    assert "-slim" in caught.value.expected


def test_a_build_that_fails_has_its_log() -> None:
    engine = _Engine("base:1")
    engine.said = [{"stream": "Step 1\n"}, {"stream": "no space left\n"}, {"error": "failed"}]
    with pytest.raises(BuildError, match="could not be made: failed") as caught:
        ensure_gateway_image(engine, "base:1")
    assert caught.value.log == "Step 1\nno space left"
    assert engine.looked_for_steps == 1, "nothing of it is left"


def test_the_default_base_is_the_python_that_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXEAT_GATEWAY_BASE", raising=False)
    assert default_base().startswith("python:3.")
    monkeypatch.setenv("EXEAT_GATEWAY_BASE", "base:9")
    assert default_base() == "base:9"


@pytest.mark.parametrize(
    ("name", "parts"),
    [("a", ("a", "latest")), ("a:1", ("a", "1")), ("h:5/a", ("h:5/a", "latest")), ("h:5/a:1", ("h:5/a", "1"))],
)
def test_a_colon_before_a_slash_is_that_of_a_port(name: str, parts: tuple[str, str]) -> None:
    assert split_tag(name) == parts
