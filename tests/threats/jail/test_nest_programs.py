"""Programs that bring a sandbox of their own, in the jail: refused and named without `--nest`, at work with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.jails.stage import Caller, Stage
from tests.support.programs import give_up, need
from tests.support.runs.running import AS_ROOT

pytestmark = pytest.mark.threat("T-M5")

# The first argument is a folder to start in. The program that follows must not start where exeat keeps its state.
_IN_FOLDER = ["sh", "-c", 'mkdir -p "$0" && cd "$0" && exec "$@"']
_PAGE = "data:text/html,<p>he</p><p>llo</p>"


@pytest.fixture
def caller(stage: Stage) -> Caller:
    """Root cannot have user namespaces inside."""
    return stage.caller("user")


def _run(stage: Stage, caller: Caller, *words: str) -> subprocess.CompletedProcess[str]:
    return stage.run(caller, *_IN_FOLDER, "work", *stage.exeat("run", *words), timeout_s=120)


def _named(name: str) -> str:
    return f"exeat: {name}: refused a user namespace, for a sandbox of its own; --nest allows it\n"


def test_a_namespace_of_users(stage: Stage, caller: Caller) -> None:
    need("unshare")
    command = ("unshare", "-Ur", "id", "-u")
    refused = _run(stage, caller, "--", *command)
    assert refused.returncode != 0
    assert refused.stderr.endswith(_named("unshare"))
    done = _run(stage, caller, "--nest", "--", *command)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_a_program_that_tried_is_in_the_summary(stage: Stage, caller: Caller) -> None:
    need("unshare")
    out = "../summary.json"
    for command, names in ((("unshare", "-Ur", "true"), ["unshare"]), (("true",), [])):
        done = _run(stage, caller, "--quiet", "--summary-json", out, "--", *command)
        assert "refused" not in done.stderr
        assert json.loads((caller.home / "summary.json").read_text())["refused_namespaces"] == names


def test_namespaces_inside_are_bounded_and_without_nest_there_are_none(stage: Stage, caller: Caller) -> None:
    """A second wall: also a kernel that the filter does not hold refuses."""
    limits = "cat /proc/sys/user/max_user_namespaces /proc/sys/user/max_net_namespaces"
    assert int(stage.run(caller, "sh", "-c", limits).stdout.split()[0]) > 1_000, "the control"
    assert _run(stage, caller, "--", "sh", "-c", limits).stdout.split()[0] == "0"
    assert _run(stage, caller, "--nest", "--", "sh", "-c", limits).stdout.split() == ["1000", "1000"]


# Serves on the machine's own loopback, and runs exeat around a program in bubblewrap that asks there.
_ASK_FROM_BUBBLEWRAP = """
import http.server, subprocess, sys, threading
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = str(server.server_port)
inside = '''
import sys, urllib.request, urllib.error
for name in ("good.test", "evil.test"):
    try:
        print(name, urllib.request.urlopen(f"http://{name}:{sys.argv[1]}/", timeout=20).status)
    except urllib.error.HTTPError as error:
        print(name, error.code)
    except OSError as error:
        print(name, "no network")
'''
policy = ["--allow", f"good.test:{port}", "--add-host", "good.test:127.0.0.1"]
sandbox = ["bwrap", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", *sys.argv[1].split()]
command = [*sandbox, sys.executable, "-I", "-c", inside, port]
raise SystemExit(subprocess.call([sys.executable, "-m", "exeat", "run", "--nest", "--quiet", *policy, "--", *command]))
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--unshare-user --unshare-pid", "good.test 200\nevil.test 403\n"),
        ("--unshare-all", "good.test no network\nevil.test no network\n"),
    ],
)
def test_bubblewrap(stage: Stage, caller: Caller, options: str, expected: str) -> None:
    """In the jail's network the gateway decides; in a new one there is nothing."""
    need("bwrap")
    refused = _run(stage, caller, "--", "bwrap", "--unshare-user", "--ro-bind", "/", "/", "true")
    assert refused.stderr.endswith(_named("bwrap"))
    python = stage.installation.python
    done = stage.run(caller, *_IN_FOLDER, "work", python, "-c", _ASK_FROM_BUBBLEWRAP, options)
    assert done.stdout == expected, done.stderr


def test_bubblewrap_as_agents_use_it(stage: Stage, caller: Caller) -> None:
    """The machine read-only, one folder writable, nothing else."""
    need("bwrap")
    mounts = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")
    script = "echo kept > ok; echo x > /usr/no 2>/dev/null && echo wrote; ls /tmp; echo done"
    work = str(caller.home / "work")
    namespaces = ("--unshare-user", "--unshare-pid", "--unshare-net", "--die-with-parent", "--new-session")
    words = ("bwrap", *mounts, "--bind", work, work, "--chdir", work, *namespaces)
    done = _run(stage, caller, "--nest", "--", *words, "sh", "-c", script)
    assert done.stdout.splitlines()[-1] == "done", done.stderr
    assert "wrote" not in done.stdout
    assert (caller.home / "work" / "ok").read_text() == "kept\n"


def test_chromium_with_its_own_sandbox(stage: Stage, caller: Caller) -> None:
    need("chromium")
    options = ("--headless=new", "--disable-gpu", "--no-first-run", "--user-data-dir=./profile", "--dump-dom", _PAGE)
    refused = _run(stage, caller, "--", "chromium", *options)
    assert "No usable sandbox" in refused.stderr, "the control: it insists on one"
    assert _named("chromium") in refused.stderr
    done = _run(stage, caller, "--nest", "--", "chromium", *options)
    assert "<p>he</p><p>llo</p>" in done.stdout, done.stderr


# Runs a command in a control group that belongs to a user, and removes the group.
_IN_OWN_GROUP = """
mount -t cgroup2 none /mnt && grep -q ' /mnt cgroup2 .*nsdelegate' /proc/mounts && exit 77
group=/mnt/exeat-test-$$
mkdir $group && chown -R $0 $group || exit 77
sh -c 'echo $$ > $0/cgroup.procs && exec "$@"' $group "$@"
status=$?
rmdir $group
exit $status
"""


@AS_ROOT
def test_a_control_group_that_the_user_rules_is_not_to_be_mounted(stage: Stage, caller: Caller) -> None:
    """By it a program could stop exeat and its caller. The control is a group that is root's."""
    need("unshare")
    script = "unshare -Ur true && echo users; unshare -UrC true && echo control groups"
    exeat = [*_IN_FOLDER, "work", *stage.exeat("run", "--nest", "--quiet", "--", "sh", "-c", script)]
    said = []
    for owner in (0, caller.uid):
        argv = ["unshare", "-m", "sh", "-c", _IN_OWN_GROUP, str(owner), *stage.command(caller, *exeat)]
        done = subprocess.run(
            argv,
            env=stage.environment(caller),
            cwd=caller.home,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        if done.returncode == 77:
            give_up("no control groups, or such as systemd mounts")
        said.append(done.stdout)
    assert said == ["users\ncontrol groups\n", "users\n"]


# Podman takes over the ids of the namespace that it is in, and looks for root among them.
_PODMAN = """
export HOME=$PWD/home XDG_RUNTIME_DIR=/run/user/$(id -u)
export _CONTAINERS_USERNS_CONFIGURED=done _CONTAINERS_ROOTLESS_UID=$(id -u)
mkdir -p home
exec unshare -UrmC sh -c 'mount -t cgroup2 none /sys/fs/cgroup && exec podman --runtime crun --cgroup-manager cgroupfs \
    --storage-driver vfs --root $PWD/home/storage --runroot $PWD/home/run \
    run --rm --network host --cgroups disabled --rootfs $PWD/root /bin/busybox echo from a container'
"""


def test_podman_without_root(stage: Stage, caller: Caller) -> None:
    need("podman", "crun", "busybox", "unshare")
    if not Path("/sys/fs/cgroup").is_dir():
        give_up("no control groups")
    root = caller.home / "work" / "root"
    _make_root(root, caller.uid)
    refused = _run(stage, caller, "--", "podman", "unshare", "true")
    assert _named("podman") in refused.stderr
    done = _run(stage, caller, "--nest", "--", "sh", "-c", _PODMAN)
    assert done.stdout == "from a container\n", done.stderr


def _make_root(folder: Path, uid: int) -> None:
    """A file system with busybox and the libraries that it is linked to."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    linked = subprocess.run(["ldd", busybox], capture_output=True, text=True, check=False).stdout.split()
    for path in (busybox, *(word for word in linked if word.startswith("/"))):
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (folder / "bin").mkdir(exist_ok=True)
    if not (folder / "bin" / "busybox").exists():
        shutil.copy(busybox, folder / "bin" / "busybox")
    for made in (folder.parent, folder, *folder.rglob("*")):
        os.chown(made, uid, uid)
