"""A registry holds what a program declares; contradictions are errors when they are declared."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

import exeat
from exeat import NetworkPolicy, Registry, SandboxConfig, SandboxLimits, UnknownSandboxError
from exeat.errors import ConfigError
from tests.unit.container import tools_to_ship


def test_an_unknown_sandbox_is_a_value_error_that_names_the_known_ones() -> None:
    registry = Registry()
    with pytest.raises(ValueError, match="there is no sandbox 'web': none is registered yet"):
        registry.sandbox("web")
    registry.register_sandbox(SandboxConfig("files"))
    registry.register_sandbox(SandboxConfig("default"))
    with pytest.raises(UnknownSandboxError, match="known are default, files;") as caught:
        registry.sandbox("web")
    assert caught.value.known == ("default", "files")
    with pytest.raises(ValueError, match="no sandbox 'web'"):
        registry.dependencies("web")


def test_the_same_again_is_nothing_new_and_other_settings_are_an_error() -> None:
    registry = Registry()
    config = registry.register_sandbox(SandboxConfig("default", dependencies=["a"]))
    registry.register_sandbox(SandboxConfig("default", dependencies=("a",)))
    assert registry.sandboxes() == (config,)
    with pytest.raises(ConfigError, match="already registered"):
        registry.register_sandbox(SandboxConfig("default", dependencies=("b",)))


def test_tools_bring_their_dependencies() -> None:
    registry = Registry()
    registry.register_sandbox(SandboxConfig("default", dependencies=("requests",)))
    registry.tool(sandbox="default", dependencies=["exgreet==1.0"])(tools_to_ship.plain)
    registry.tool(sandbox="other", dependencies=["else"])(tools_to_ship.waits)
    assert registry.dependencies("default") == ("exgreet==1.0", "requests")
    assert [tool.name for tool in registry.tools("default")] == ["plain"]


def test_a_module_that_is_loaded_again_replaces_its_tools_and_another_function_does_not(tmp_path: Any) -> None:
    registry = Registry()
    registry.tool(tools_to_ship.plain)
    registry.tool(tools_to_ship.plain)
    path = tmp_path / "another.py"
    path.write_text("def plain(number: int) -> int:\n    return 5\n")
    names: dict[str, Any] = {"__name__": "another"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(ConfigError, match=r"has a tool 'plain' already: tests\.unit\.container\.tools_to_ship\.plain"):
        registry.tool(names["plain"])


def test_a_registry_of_ones_own_knows_nothing_of_the_common_one() -> None:
    own = Registry()
    own.register_sandbox(SandboxConfig("only-here"))
    assert "only-here" not in [config.name for config in exeat.registry.sandboxes()]


@pytest.mark.parametrize("name", ["", "Default", "a b", "-a", "a-", "a/b", "a:b", "../a", "a--b", "x" * 64, "ä"])
def test_a_name_is_one_that_every_engine_takes(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a sandbox"):
        SandboxConfig(name)


def test_a_text_is_not_taken_for_a_list_of_its_letters() -> None:
    with pytest.raises(ConfigError, match="dependencies is 'requests'"):
        SandboxConfig("default", dependencies="requests")
    with pytest.raises(ConfigError, match="dependencies is 'requests'"):
        Registry().tool(dependencies="requests")
    with pytest.raises(ConfigError, match=r"allowed_hosts is 'good\.test'"):
        NetworkPolicy(allowed_hosts="good.test")


def test_a_dependency_that_is_an_option_of_pip_is_refused_wherever_it_is_declared() -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        SandboxConfig("default", dependencies=("--index-url=https://evil.example.com",))
    with pytest.raises(ConfigError, match="cannot be used"):
        Registry().tool(dependencies=["-r /etc/passwd"])


@pytest.mark.parametrize("image", ["two words", " python", "python\n", "a\x00b"])
def test_a_base_image_is_one_name(image: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of an image"):
        SandboxConfig("default", base_image=image)


def test_a_network_policy_is_rules_that_exeat_reads() -> None:
    assert NetworkPolicy().is_isolated
    assert NetworkPolicy.isolated().rules() == ()
    policy = NetworkPolicy(allowed_hosts=["api.example.com", "*.good.test"], allowed_ports=[443, 8443])
    assert policy.rules() == ("api.example.com:443", "api.example.com:8443", "*.good.test:443", "*.good.test:8443")
    assert not policy.is_isolated
    assert NetworkPolicy(("good.test",)).rules() == ("good.test",)
    exeat.make_policy(policy.rules())


@pytest.mark.parametrize(
    ("hosts", "ports"),
    [(["bad host"], []), (["!good.test"], []), (["good.test methods=GET"], []),
     (["good.test"], [0]), (["good.test"], [70_000]), (["good.test"], [True]),
     (["good.test"], ["443"]), ([], [443]), (["*"], ["x"])],
)  # fmt: skip
def test_a_policy_that_says_something_else_is_refused(hosts: Any, ports: Any) -> None:
    with pytest.raises(ConfigError):
        NetworkPolicy(hosts, ports)


@pytest.mark.parametrize("limits", [{"pids": 0}, {"memory_bytes": -1}, {"cpus": "2"}, {"call_s": float("nan")}])
def test_limits_are_numbers_above_zero(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a number above 0"):
        SandboxLimits(**limits)


def test_importing_exeat_loads_nothing_of_it() -> None:
    program = "import exeat, sys; print([name for name in sys.modules if re.match('exeat.(container|engine)', name)])"
    done = subprocess.run([sys.executable, "-c", f"import re; {program}"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\[\]\n", done.stdout)
