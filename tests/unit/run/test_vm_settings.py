"""What a virtual machine cannot have is refused before anything starts, with what to use instead."""

from __future__ import annotations

import pytest

import exeat.run.vm_settings
from exeat.errors import ConfigError, JailError
from exeat.file_policy import FileSettings
from exeat.jail.select import BODIES
from exeat.jail.vm.options import VmOptions
from exeat.run.lifecycle import refuse_what_it_lacks
from exeat.run.settings import Plan, Preparations, RunSettings, make_plan


def plan(prepared: Preparations | None = None, **settings: object) -> Plan:
    made = RunSettings(["true"], **{"jail": "vm", "vm": VmOptions()} | settings)  # type: ignore[arg-type]
    return make_plan(made, prepared or Preparations())


@pytest.mark.threat("T-V21")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"unix": ("/run/x.sock",)}, "a guest cannot reach a Unix socket"),
        ({"devices": ("/dev/fuse",)}, "has devices of its own"),
        ({"files": (FileSettings(mode="host"),)}, "every file that you can"),
        ({"prepared": Preparations(files=(FileSettings("policy.toml", mode="host"),))}, "policy.toml: files.mode"),
    ],
)
def test_it_is_said(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_what_it_lacks(BODIES["vm"], plan(**settings))  # type: ignore[arg-type]
    assert said in str(refused.value)
    assert refused.value.expected


def test_a_jail_has_no_virtual_machine_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exeat.run.vm_settings, "is_already_inside", lambda: True)
    with pytest.raises(JailError, match="already inside"):
        refuse_what_it_lacks(BODIES["vm"], plan())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"proxy_env": False},
        {"files": (FileSettings(nest=True),)},
        {"files": (FileSettings(write=("/srv",), hide=("/opt",), layer_bytes=1 << 30),)},
    ],
)
def test_the_control(settings: dict[str, object]) -> None:
    """Also as root, for whom --nest is refused in a jail without a kernel of its own."""
    refuse_what_it_lacks(BODIES["vm"], plan(**settings))  # type: ignore[arg-type]
