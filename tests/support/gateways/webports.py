"""Tests that need ports 80 and 443 of loopback, for every user.

Who may bind them runs such a test here. Everybody else gets the whole file run once in a child with a user and
network namespace of its own, where the ports are free, and each test then reports what its twin there did.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec
from xml.etree import ElementTree

import pytest

Params = ParamSpec("Params")
_INSIDE = "EXEAT_TEST_IN_NAMESPACE"  # set in the child, so that it never starts another
_FORCE = "EXEAT_TEST_FORCE_NAMESPACE"  # set by hand, to see the child's way as a privileged user
_ROOT = Path(__file__).parents[3]

_CHILD = """
import sys, pytest
from tests.support.own_network import bring_loopback_up
bring_loopback_up()
sys.exit(pytest.main(sys.argv[1:]))
"""


def _can_bind() -> bool:
    if _FORCE in os.environ and _INSIDE not in os.environ:
        return False
    for port in (80, 443):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.9", port))
            except OSError:
                return False
    return True


def _give_up(why: str) -> dict[str, str]:
    if os.environ.get("CI"):
        pytest.fail(f"ports 80 and 443 cannot be tested: {why}")
    pytest.skip(f"ports 80 and 443 cannot be tested: {why}")


@functools.lru_cache(maxsize=8)
def _run_in_namespace(file: str) -> dict[str, str] | str:
    """The failures of each test of the file by its name, empty for one that passed; or why there was no run."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return "they need privileges, and there is no unshare program"
    if subprocess.run([unshare, "-Urn", "true"], capture_output=True, timeout=20, check=False).returncode != 0:
        return "they need privileges, and user namespaces are not available"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        run = subprocess.run(
            [unshare, "-Urn", sys.executable, "-c", _CHILD, file, f"--junitxml={report}", f"--basetemp={folder}/tmp"],
            cwd=_ROOT,
            env=os.environ | {_INSIDE: "1", "CI": "1"},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        if not report.exists():
            return f"the child failed: {run.stdout[-2000:]}{run.stderr[-2000:]}"
        found: dict[str, str] = {}
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            faults = [child for child in case if child.tag in ("failure", "error", "skipped")]
            found[case.attrib["name"]] = "\n".join(f"{child.tag}: {child.text}" for child in faults)
        return found


def on_web_ports(test: Callable[Params, None]) -> Callable[Params, None]:
    """Run the test where ports 80 and 443 of 127.0.0.2 and up can be bound. It must bind them in its body."""

    @functools.wraps(test)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> None:
        if _INSIDE in os.environ or _can_bind():
            test(*args, **kwargs)
            return
        outcome = _run_in_namespace(str(Path(test.__code__.co_filename)))
        if isinstance(outcome, str):
            outcome = _give_up(outcome)
        name = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2].rpartition(" ")[0]
        assert name in outcome, f"the child did not run {name}"
        assert not outcome[name], outcome[name]

    return run
