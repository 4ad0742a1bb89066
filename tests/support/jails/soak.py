"""Many runs in a row leave nothing behind: `python -m tests.support.jails.soak --runs 1000 [--jail netns] ...`.

As a program of its own (`soak.py --here`), in a world where /proc shows nothing but its own processes, it counts
before and after: processes, namespaces, mounts, files, descriptors, sockets, shared memory, packet rules. An ordinary
caller is also given a user namespace that allows few namespaces at a time, so that one which is leaked out of sight
makes a later run fail. Standard library only, because other users run it too.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_SETTLE_S = 5.0
_KINDS = ("user", "net", "mnt", "pid", "ipc", "uts", "cgroup")
# Namespaces that a run has at a time, and those of the last runs, which the kernel takes apart in its own time.
_LIMIT = 24
_RUN_S = 150


def census() -> dict[str, list[str]]:
    """All that a run could leave behind, as names that can be compared."""
    processes, namespaces = [], set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                processes.append(f"{entry.name} {(entry / 'comm').read_text().strip()}")
                namespaces |= {str((entry / "ns" / kind).readlink()) for kind in _KINDS}
                for descriptor in (entry / "fd").iterdir():
                    target = str(descriptor.readlink())
                    if target.partition(":")[0] in _KINDS:
                        namespaces.add(f"held by {entry.name}: {target}")
            except OSError:
                continue
    mounts = [line.split(" - ")[0].split(None, 2)[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    files = [
        f"{folder}/{name}"
        for top in (os.environ["HOME"], os.environ["TMPDIR"], os.environ["XDG_RUNTIME_DIR"], "/run")
        for folder, folders, names in os.walk(top)
        for name in (*folders, *names)
    ]
    sockets = [line.split(None, 7)[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    shared = [f"{kind}: {line.split()[1]}" for kind in ("shm", "sem", "msg") for line in _table(kind)]
    return {
        "processes": sorted(processes),
        "namespaces": sorted(namespaces),
        "mounts": sorted(mounts),
        "files": sorted(files),
        "descriptors": sorted(str(path) for path in Path("/proc/self/fd").iterdir())[:-1],
        "sockets": sorted(socket for socket in sockets if socket.startswith(("/", "@"))),
        "shared memory": sorted(shared),
        "packet rules": _packet_rules(),
    }


def _table(kind: str) -> list[str]:
    path = Path(f"/proc/sysvipc/{kind}")
    return path.read_text().splitlines()[1:] if path.exists() else []


def _packet_rules() -> list[str]:
    nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin")
    if nft is None or os.geteuid() != 0:
        return []
    return subprocess.run([nft, "list", "tables"], capture_output=True, text=True, check=True).stdout.splitlines()


def difference(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, list[str]]:
    """What is there now and was not before."""
    found = {name: sorted(set(after[name]) - set(before[name])) for name in before}
    return {name: new for name, new in found.items() if new}


def limit_namespaces() -> None:
    """A user namespace in which this user is who he was, and which allows few namespaces below it."""
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    for kind in ("user", "net", "mnt", "pid", "ipc"):
        Path(f"/proc/sys/user/max_{kind}_namespaces").write_text(str(_LIMIT))


def soak(runs: int, jail: str) -> dict[str, list[str]]:
    """Run that often, in three ways: to a good end, to a bad one, and killed on the way. What is left is returned."""
    exeat = [sys.executable, "-m", "exeat", "run", "--quiet", "--jail", jail, "--allow", "allowed.test", "--"]
    os.chdir("/")  # where every user may be
    _run([*exeat, "true"], 0)  # what is made once is made now
    before = census()
    for number in range(runs):
        match number % 10:
            case 7:
                _run([*exeat, "sh", "-c", "sleep 60 & exit 3"], 3)
            case 8:
                _run_and_kill([*exeat, "sh", "-c", "echo ready; sleep 60"])
            case _:
                _run([*exeat, "true"], 0)
    end = time.monotonic() + _SETTLE_S
    while (left := difference(before, census())) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _run(command: list[str], status: int) -> None:
    with tempfile.TemporaryFile() as errors:  # not a pipe: its reader would wait for whoever is left
        null = subprocess.DEVNULL
        done = subprocess.run(command, stdin=null, stdout=null, stderr=errors, timeout=_RUN_S, check=False)
        if done.returncode != status:
            errors.seek(0)
            raise SystemExit(f"exit status {done.returncode} instead of {status}\n{errors.read().decode()}")


def _run_and_kill(command: list[str]) -> None:
    """SIGKILL in the middle: no one gets a chance to tidy up."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run exeat many times and look for what is left behind.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--jail", default="netns")
    parser.add_argument("--caller", choices=("root", "user"), action="append", default=[])
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        if os.geteuid() != 0:
            limit_namespaces()
        left = soak(options.runs, options.jail)
        print(json.dumps(left, indent=1))
        return 1 if left else 0
    return _soak_in_worlds(options.runs, options.jail, options.caller)


def _soak_in_worlds(runs: int, jail: str, callers: list[str]) -> int:
    """One world for each caller, and a line for each."""
    from tests.support.jails.stage import open_stage

    if os.geteuid() != 0:
        raise SystemExit("needs root, to make a world in which no one else leaves things behind")
    status = 0
    with open_stage() as stage:
        for name in callers or ["root", "user"]:
            began = time.monotonic()
            words = ("--here", "--runs", str(runs), "--jail", jail)
            done = stage.script(stage.caller(name), "soak.py", *words, timeout_s=60 + runs * 5)
            verdict = "nothing left behind" if done.returncode == 0 else f"{done.stdout}{done.stderr}"
            print(f"{jail} as {name}: {runs} runs in {time.monotonic() - began:.0f} s: {verdict}")
            status |= done.returncode
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())
