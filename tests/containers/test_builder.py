"""Images of sandboxes as real engines build them: what is in their layers, and what is left of a build."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from exeat import BuildError, Registry, SandboxBuilder, SandboxConfig
from exeat.container.images.image import BuildOrder
from exeat.container.images.left_over import remove_build_steps
from exeat.engine.client import Engine
from exeat.engine.owner import OWNER, labels
from tests.containers.sandbox_tools import greet, lost, wait
from tests.support.engines.base import DOCKER_ROOT, PODMAN_ROOT, PODMAN_ROOTLESS, Base, Way
from tests.support.engines.session import Engines
from tests.support.images.greedy import PROGRAMS, make_greedy, make_wheel
from tests.support.images.index import serving
from tests.support.images.layers import Layers, export

_REPOSITORY = Path(__file__).parents[2]
_PASSWORD = "hunter2-of-the-index"
_UNWANTED = {*PROGRAMS, "curl", "apt", "dpkg", "pip", "pip3"}
_LOOK = """
import importlib.util, json, os, pwd, ssl, sys
sys.path.append("/exeat/tools")
import greet
import exeat_greeting, http.client
def is_compiled(module):
    with open(module.__cached__, "rb") as file:
        return int.from_bytes(file.read(16)[8:12], "little") == int(os.stat(module.__file__).st_mtime)
print(json.dumps({
    "user": pwd.getpwuid(os.getuid()).pw_name,
    "uid": os.getuid(),
    "home": os.getcwd(),
    "greeting": greet.greet("you"),
    "authorities": len(ssl.create_default_context().get_ca_certs()) > 10,
    "pip": [name for name in ("pip", "ensurepip") if importlib.util.find_spec(name)],
    "compiled": is_compiled(exeat_greeting) and is_compiled(http.client),
    "mark": os.environ.get("MARK"),
    "kept": os.path.exists("/etc/exeat-of-base"),
    "left": [path for path in ("/exeat-build", "/add.py") if os.path.exists(path)],
    "of_pip": [name for name in os.environ if name.startswith("PIP_")],
}))
"""


class Built(NamedTuple):
    """An image with a package from an index that wants a password, and what was said meanwhile."""

    engine: Engine
    registry: Registry
    tag: str
    said: list[str]
    base: str


def _engine(base: Base) -> Engine:
    return Engine(str(base.socket), base.kind)


def _registry(base: str, *dependencies: str) -> Registry:
    registry = Registry()
    registry.register_sandbox(SandboxConfig("default", dependencies=dependencies, base_image=base))
    registry.tool(sandbox="default")(greet)
    registry.tool(sandbox="default")(wait)
    return registry


def _ensure(engine: Engine, registry: Registry, said: list[str] | None = None) -> str:
    builder = SandboxBuilder(registry, engine, on_progress=(said if said is not None else []).append)
    return asyncio.run(builder.ensure_sandbox("default"))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of packages, and no other place to get any from."""
    folder = tmp_path_factory.mktemp("packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXEAT_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_FIND_LINKS", str(folder))
        patch.setenv("PIP_NO_INDEX", "1")
        yield folder


@pytest.fixture(scope="module")
def docker(engines: Engines) -> Base:
    """One in which no one else builds: these tests look at every image that there is."""
    return engines.get(DOCKER_ROOT, own="builds")


@pytest.fixture(scope="module")
def built(docker: Base, settings: Path) -> Built:
    engine = _engine(docker)
    base = make_greedy(engine, docker.image)
    needed = make_wheel(settings, "exeat_greeting", "1.0", "def greet(name):\n    return 'hello ' + name\n")
    registry = _registry(base, needed)
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch, serving(docker, settings, f"me:{_PASSWORD}") as index:
        patch.delenv("PIP_FIND_LINKS")
        patch.delenv("PIP_NO_INDEX")
        patch.setenv("PIP_INDEX_URL", f"http://me:{_PASSWORD}@{index}/simple")
        patch.setenv("PIP_TRUSTED_HOST", index)
        tag = _ensure(engine, registry, said)
    return Built(engine, registry, tag, said, base)


@pytest.fixture(scope="module")
def layers(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Layers:
    return export(built.engine, built.tag, tmp_path_factory.mktemp("image") / "image.tar")


def _check_layers(layers: Layers) -> None:
    assert layers.programs(_UNWANTED) == set()
    assert layers.privileged() == set()
    assert layers.below("var/cache", "var/lib/apt", "root", "tmp", "usr/lib/apt", "exeat-build") == set()
    assert [entry.path for entry in layers.entries if entry.path.rpartition("/")[2].startswith(".wh.")] == []
    assert {entry.path for entry in layers.entries} >= {"exeat/harness.py", "exeat/tools/manifest.json", "etc/passwd"}
    assert layers.config["config"]["User"] == "sandbox"
    assert layers.config["config"]["Entrypoint"] == ["python3", "-I", "-B", "/exeat/harness.py"]


@pytest.mark.threat("T-O1")
def test_no_layer_has_what_fetches_compiles_or_raises_rights(built: Built, layers: Layers, tmp_path: Path) -> None:
    _check_layers(layers)
    control = export(built.engine, built.base, tmp_path / "base.tar")
    assert {path.rpartition("/")[2] for path in control.programs(_UNWANTED)} == _UNWANTED
    assert {"opt/raw", "opt/as-root"} <= control.privileged()
    assert control.below("root/.cache")


@pytest.mark.threat("T-O2")
def test_passwords_for_the_index_are_nowhere_in_the_image_nor_at_the_engine(built: Built, layers: Layers) -> None:
    assert [line for line in built.said if line.startswith("Looking in indexes: http://")]
    assert "Successfully installed exeat_greeting-1.0" in [
        line.replace("-greeting", "_greeting") for line in built.said
    ]
    assert _PASSWORD not in "".join(built.said)
    assert not layers.holds(_PASSWORD.encode())
    assert layers.holds(b"def greet(name")  # the control: what is in a layer is found
    for image in built.engine.call("GET", "/images/json", query={"all": True}):
        history = built.engine.call("GET", f"/images/{image['Id']}/history")
        assert _PASSWORD not in json.dumps(history)
        assert not (image.get("Labels") or {}).get(OWNER) or _is_parent(built, image["Id"])


def _is_parent(built: Built, image: str) -> bool:
    """What is between the last steps of an image stays with it; it has no file that the image does not have."""
    found = [built.engine.call("GET", f"/images/{each}/json") for each in _ids(built.engine)]
    return image in {each.get("Parent") for each in found}


def _ids(engine: Engine) -> list[str]:
    return [image["Id"] for image in engine.call("GET", "/images/json", query={"all": True})]


def test_the_image_runs_as_its_own_user_with_its_packages_and_tools(built: Built) -> None:
    assert _run(built.engine, built.tag, _LOOK) == {
        "user": "sandbox",
        "uid": 10001,
        "home": "/home/sandbox",
        "greeting": '["hello you", "hello you"]',
        "authorities": True,
        "pip": [],
        "compiled": True,
        "mark": "of-base",
        "kept": True,
        "left": ["/add.py"],
        "of_pip": [],
    }


def _run(engine: Engine, image: str, program: str) -> Any:
    body = {
        "Image": image,
        "Entrypoint": ["python3", "-I", "-B", "-c", program],
        "Tty": True,  # so that the output is not in frames
        "Labels": {"exeat.kind": "test"},
        "HostConfig": {"NetworkMode": "none", "ReadonlyRootfs": True, "CapDrop": ["ALL"]},
    }
    box = engine.call("POST", "/containers/create", body=body)["Id"]
    try:
        engine.call("POST", f"/containers/{box}/start")
        engine.call("POST", f"/containers/{box}/wait")
        said = engine.raw("GET", f"/containers/{box}/logs", query={"stdout": True, "stderr": True}).decode()
    finally:
        engine.call("DELETE", f"/containers/{box}", query={"force": True})
    assert said.startswith("{"), said
    return json.loads(said)


def test_a_changed_tool_is_another_image_on_the_same_packages_and_the_old_one_stays(built: Built) -> None:
    changed = _registry(built.base, *built.registry.dependencies("default"))
    tool = changed.tools("default")[0]
    changed._tools["default", tool.name] = type(tool)(tool.name, "default", f"{tool.source}# more\n", tool.is_async)
    before = set(_ids(built.engine))
    said: list[str] = []
    tag = _ensure(built.engine, changed, said)
    assert [line.partition(":")[0] for line in said if line.startswith("building")] == [
        "building exeat-sandbox-default"
    ]
    assert tag != built.tag
    assert before < set(_ids(built.engine))
    again: list[str] = []
    assert _ensure(built.engine, built.registry, again) == built.tag
    assert again == []


@pytest.mark.parametrize(
    ("dependency", "why", "in_log"),
    [
        ("exeat-no-such-package==1", "the packages could not be installed", "No matching distribution"),
        (f"exeat_greeting==1.0 --hash=sha256:{'0' * 64}", "the packages could not be installed", "DO NOT MATCH"),
    ],
)
def test_a_failed_build_has_its_log_and_leaves_nothing(built: Built, dependency: str, why: str, in_log: str) -> None:
    before = set(_ids(built.engine))
    with pytest.raises(BuildError) as caught:
        _ensure(built.engine, _registry(built.base, dependency))
    assert why in caught.value.public
    assert in_log in caught.value.log
    assert set(_ids(built.engine)) == before


def test_a_tool_whose_imports_are_not_in_the_image_is_named(built: Built) -> None:
    registry = _registry(built.base, *built.registry.dependencies("default"))
    registry.tool(sandbox="default")(lost)
    before = set(_ids(built.engine))
    with pytest.raises(BuildError, match="the tool lost imports exeat, which is neither in Python nor"):
        _ensure(built.engine, registry)
    assert set(_ids(built.engine)) == before


def test_processes_that_build_at_once_and_one_that_is_killed(built: Built, docker: Base) -> None:
    """Who comes next removes what dead ones have left. Of two that go on, one builds."""
    program = [sys.executable, "-m", "tests.containers.sandbox_tools", str(docker.socket), docker.kind, built.base]
    needed = built.registry.dependencies("default")
    killed = _start([*program, "killed", *needed])
    assert killed.stdout is not None
    for line in killed.stdout:
        if line.startswith("Step 4"):
            break
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    left = _leave_steps(built)
    both = [_start([*program, "short", *needed]) for _ in range(2)]
    said = [process.communicate()[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0][-1] == said[1][-1]
    builds = [line.partition(":")[0] for lines in said for line in lines if line.startswith("building")]
    assert builds == ["building exeat-sandbox-short"]
    assert left.isdisjoint(_ids(built.engine))
    remove_build_steps(
        built.engine
    )  # of the killed one: the engine may have ended its build after that, or completed it
    assert all(_is_parent(built, each) for each in _with_owner(built.engine, f".{killed.pid}."))


def _with_owner(engine: Engine, text: str) -> set[str]:
    images = engine.call("GET", "/images/json", query={"all": True})
    return {image["Id"] for image in images if text in (image.get("Labels") or {}).get(OWNER, "")}


def _leave_steps(built: Built) -> set[str]:
    """As a process leaves them that is killed, for certain: two images, one on the other."""
    world = labels("build")[OWNER].rpartition(".")[0].rpartition(".")[0]
    dockerfile = f'FROM scratch\nLABEL {OWNER}="{world}.999999999.1"\nLABEL more="1"\n'
    order = BuildOrder(tag="", dockerfile=dockerfile, files={})
    headers = {"Content-Type": "application/x-tar"}
    for line in built.engine.stream("POST", "/build", data=order.context(), headers=headers):
        assert "error" not in line, line
    left = _with_owner(built.engine, ".999999999.")
    assert len(left) == 2
    return left


def _start(argv: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(argv, cwd=_REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.threat("T-O1")
@pytest.mark.parametrize("way", [PODMAN_ROOT, PODMAN_ROOTLESS], ids=lambda way: way.name)
def test_podman_builds_the_same(way: Way, engines: Engines, settings: Path, tmp_path: Path) -> None:
    """Without packages: this is the image that other tests of this engine start from, too."""
    base = engines.get(way)
    engine = _engine(base)
    tag = _ensure(engine, _registry(base.image))
    _check_layers(export(engine, tag, tmp_path / "image.tar"))
    assert _run(engine, tag, 'import json, os; print(json.dumps({"uid": os.getuid()}))') == {"uid": 10001}
    made = engine.call("GET", "/images/json", query={"all": True})
    ours = [each for each in made if f".{os.getpid()}." in (each.get("Labels") or {}).get(OWNER, "")]
    assert all(each["RepoTags"] for each in ours), "an image without a tag was left"
    assert _ensure(engine, _registry(base.image)) == tag
