"""Tests do not depend on who starts them: see tests/support/starting.py."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import need
from tests.support.runs.running import AS_ROOT

_STATE = """
import json, locale, os, resource, signal, subprocess, sys, tempfile
if sys.argv[1] == "alike":
    from tests.support.starting import start_alike
    start_alike()
umask = os.umask(0)
os.umask(umask)
# As a program sees it that a test starts.
lines = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout.splitlines()
status = dict(line.split(":", 1) for line in lines)
print(json.dumps({
    "signals": [status[name].strip() for name in ("SigIgn", "SigBlk")],
    "interrupt": str(signal.getsignal(signal.SIGINT)),
    "umask": umask,
    "limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "temporary": tempfile.gettempdir(),
    "encoding": locale.getencoding(),
    "variables": {name: value for name, value in os.environ.items() if name not in ("HOME", "TESTS_LATE_IMPORTS")},
    "writable": os.access(os.environ.get("HOME", "/nonexistent"), os.W_OK),
    "inherited": [name for name in os.listdir("/proc/self/fd") if name > "2" and os.path.exists(f"/proc/self/fd/{name}")
                  and os.get_inheritable(int(name))],
}))
"""
_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGTSTP,
    signal.SIGTTOU,
)
_STRANGE = {
    "LANG": "tr_TR.UTF-8", "LC_ALL": "POSIX", "HOME": "/nonexistent", "TMPDIR": "/var/tmp", "TERM": "dumb",
    "http_proxy": "http://127.0.0.1:9", "EXEAT_POLICY": "/nonexistent", "XDG_STATE_HOME": "/nonexistent",
    "NO_COLOR": "1", "COLUMNS": "20", "TZ": "Asia/Tokyo", "SSL_CERT_FILE": "/nonexistent", "PYTHONPATH": "/nonexistent",
}  # fmt: skip


def _ignore() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _state(how: str, before: Callable[[], Any] = lambda: None, **more: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"env": {"PATH": os.environ["PATH"]}, "start_new_session": True} | more
    done = subprocess.run(
        [sys.executable, "-c", _STATE, how], preexec_fn=before, stdout=subprocess.PIPE, text=True, timeout=50,
        check=True, cwd=Path(__file__).parents[2], **settings,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("before", "more"),
    [
        (_ignore, {}),
        (_block, {}),
        (_few_descriptors, {}),
        (lambda: os.umask(0o077), {}),
        (lambda: os.umask(0), {}),
        (lambda: os.close(0), {}),
        (lambda: None, {"env": {"PATH": os.environ["PATH"]} | _STRANGE}),
    ],
    ids=["signals ignored", "signals blocked", "few descriptors", "umask 077", "umask 0", "no input", "variables"],
)
def test_a_session_starts_alike_whoever_starts_it(before: Callable[[], Any], more: dict[str, Any]) -> None:
    """And without it, the same programs find what their caller has left them."""
    usual = _state("alike")
    assert usual["signals"][1] == "0" * 16
    assert usual["writable"]
    assert _state("alike", before, **more) == usual


@pytest.mark.parametrize(("before", "name"), [(_ignore, "signals"), (_block, "signals"), (_few_descriptors, "limit")])
def test_control_what_a_caller_sets_is_inherited(before: Callable[[], Any], name: str) -> None:
    assert _state("as it is", before)[name] != _state("as it is")[name]


_NETWORK = """
import os, socket, subprocess
from tests.support.jails.networks import own_addresses
from tests.support.own_network import on_the_machines_network, take_own_network
before = os.readlink("/proc/self/ns/net")
take_own_network()
with socket.create_server(("127.0.0.1", 80)) as server, socket.create_connection(server.getsockname()):
    print(os.readlink("/proc/self/ns/net") != before, len(own_addresses()) > 0, flush=True)
subprocess.run([*on_the_machines_network(), "readlink", "/proc/self/ns/net"], check=True)
print(before)
"""


@AS_ROOT
def test_a_worker_has_a_network_of_its_own_and_can_reach_the_machines() -> None:
    need("ip", "nsenter")
    done = subprocess.run(
        [sys.executable, "-c", _NETWORK], stdout=subprocess.PIPE, text=True, check=True, timeout=50,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    own, inside, before = done.stdout.splitlines()
    assert own == "True True"
    assert inside == before
