"""Nothing is loaded once the command runs, and nothing is missed then.

What a process tries to load too late is seen by every test that runs one (tests/support/at_start). Here: that it is
seen, and that no module of a gateway has an import left for later that was not made in time, whether a test comes
there or not.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.starting import take_late_imports

_SEAL_AND_USE = """
from exeat.run.sealing import seal_imports
seal_imports()
try:
    import {0}
except ImportError:
    pass
"""


@pytest.mark.parametrize(("module", "is_late"), [("wave", True), ("sys", False), ("os", False)])
def test_a_late_import_is_noticed(module: str, is_late: bool) -> None:
    """The witness of all other tests: were it blind, they would see nothing."""
    subprocess.run([sys.executable, "-c", _SEAL_AND_USE.format(module)], check=True, timeout=60)
    assert take_late_imports().startswith(f"{module}: <string>:5") == is_late


# What each process has loaded when the command starts, in the order in which it does.
_GATEWAY = """
import exeat.sandbox.placeholders
from exeat.run.gateway_process import intercepting, oversight, rules, serving, stored, who_asks
from exeat.gateway.gates.resolve import load_system_resolver
load_system_resolver()
"""
_RUNNER = """
import exeat.run.main, exeat.run.lifecycle, exeat.run.viewed_files, exeat.run.asks.command_terminal
import exeat.run.learn.file_at_end
import exeat.run.learn.files, exeat.files.layers.saving, exeat.trust.places
import exeat.jail.bodies.netns, exeat.jail.bodies.nft, exeat.jail.bodies.env
import exeat.jail.bodies.container, exeat.jail.container.adopt, exeat.run.container_files
import exeat.jail.bodies.vm, exeat.jail.vm.host.unpacked, exeat.run.vm_settings, exeat.secrets.stream.unpacking
import exeat.jail.vm.saved.deciding, exeat.run.files.guest_disk
import exeat.run.files.image_shares
"""
_INIT = "import exeat.jail.process.builder, exeat.jail.files.truststore, exeat.jail.limits.own_user"
_LISTS = """
from exeat.run import sealing
seal = (*sealing.GATEWAY, *sealing.ROTATION, *sealing.INTERCEPTION)
for name in seal:
    importlib.import_module(name)
"""
_IMPORTS = "import dis, importlib, importlib.util, json, sys, types"
# Looks for imports inside functions, of modules that are not there by then.
_FIND_LEFT = """
def inner(code):
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each
            yield from inner(each)

def imports(code, package):
    level = 0
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            yield importlib.util.resolve_name("." * level + step.argval, package)
        elif isinstance(step.argval, int) and step.opname.startswith("LOAD_"):
            level = step.argval  # the last number that is loaded before the name

left = []
for name in [name for name in sys.modules if name.split(".")[0] in sys.argv[1:]]:
    spec = sys.modules[name].__spec__
    whole = spec.loader.get_code(name) if hasattr(spec.loader, "get_code") else None
    for code in inner(whole) if whole else ():  # compiled modules have none
        left += [f"{name}: {target}" for target in imports(code, spec.parent) if target not in sys.modules]
print(json.dumps(left))
"""
_PACKAGES = ("exeat", "aiohappyeyeballs", "h2", "hpack", "hyperframe", "httptools", "idna", "publicsuffixlist")
# Needed only before a command runs, or in another process.
_BEFORE = {
    "exeat.sandbox.folder: difflib",
    "exeat.gateway.process: uvloop", "exeat.policy.document: tomllib", "exeat.policy.document: exeat.policy.files",
    "exeat.policy.document: exeat.policy.positions", "exeat.policy.grammar: publicsuffixlist",
    "exeat.run.gateway_process.process: exeat.run.asks.terminal",
    "exeat.run.gateway_process.scrubbing: exeat.jail.libc",
    "exeat.run.gateway_process.rules: exeat.jail.limits.privileges",
    "exeat.secrets.stream.unpacking: brotli", "exeat.secrets.stream.unpacking: compression",
    "exeat.secrets.stream.unpacking: backports",
    "exeat.jail.process.command: termios", "exeat.jail.bodies.child: tempfile",
    "exeat.jail.limits.own_user: grp", "exeat.jail.limits.own_user: pwd",
    "exeat.jail.files.mounts: exeat.jail.files.truststore", "exeat.jail.process.builder: exeat.jail.files.truststore",
    "exeat.run.files.seen_files: exeat.files.layers.folding",
    "exeat.run.viewed_files: exeat.run.files.answers", "exeat.run.viewed_files: exeat.run.files.ground",
    "exeat.run.main: exeat.run.files.versions",
    "exeat.engine.client: urllib.parse", "exeat.engine.find: exeat.engine.own_service",
    "exeat.jail.container.furnishing: exeat.jail.container.trust",
    "exeat.jail.container.cell: exeat.jail.container.door", "exeat.jail.container.stage: tarfile",
    "exeat.run.gateway_process.process: exeat.run.gateway_process.rules",
    "exeat.run.gateway_process.process: exeat.run.gateway_process.serving",
}  # fmt: skip
# The code that keeps a layer loads these with the sandbox, and uses nothing of them.
_OF_THE_POLICY = {
    "exeat.policy.host: idna", "exeat.policy.policy: hashlib",
}  # fmt: skip


def _left(*programs: str) -> set[str]:
    argv = [sys.executable, "-c", "\n".join((_IMPORTS, *programs, _FIND_LEFT)), *_PACKAGES]
    return set(json.loads(subprocess.run(argv, check=True, timeout=60, stdout=subprocess.PIPE).stdout))


def test_no_import_of_the_gateway_process_is_left_for_later() -> None:
    assert _left(_GATEWAY, _LISTS) - _BEFORE == set()


def test_control_imports_that_are_left_are_found() -> None:
    assert _left(_GATEWAY) - _BEFORE


def test_no_import_of_the_runner_is_left_for_later() -> None:
    assert _left(_RUNNER) - _BEFORE - _OF_THE_POLICY == set()


def test_no_import_of_the_builder_and_of_init_is_left_for_later() -> None:
    assert _left(_INIT) - _BEFORE == set()
