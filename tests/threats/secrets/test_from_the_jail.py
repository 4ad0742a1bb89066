"""A command in a jail goes after the secrets that it was given placeholders for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.jails.networks import Networks
from tests.support.runs.running import AS_ROOT, BY_USER, exeat, python
from tests.support.runs.secret_runs import SOURCES, Hoard, authority, places, workshop

pytestmark = pytest.mark.threat("T-C4", "T-H5", "T-E7")

# What a secret's command reads, no one can know and hide.
KNOWN = [source for source in SOURCES if source != "command"]
# Goes after values, which it knows by their looks, and after private keys. Prints what it found, as JSON.
THIEF = r"""
import ctypes, glob, json, os, re, socket, stat, sys
value = re.compile(rb"live-x*[0-9]{4}[0-9a-f]{24}")
key = re.compile(rb"-----BEGIN [A-Z ]{0,20}PRIV" rb"ATE KEY")
files = json.loads(sys.argv[1])
found = []
def attempt(what, *arguments):
    try:
        return what(*arguments)
    except (OSError, ValueError) as error:
        return type(error).__name__
def read(path):
    with open(path, "rb") as file:
        return file.read(1 << 24)
def search(where, data):
    if isinstance(data, bytes):
        found.extend([where, name] for name, pattern in (("value", value), ("key", key)) if pattern.search(data))
def walk(top):
    for folder, _, names in os.walk(top):
        for name in names:
            path = f"{folder}/{name}"
            if attempt(lambda: stat.S_ISREG(os.stat(path).st_mode)) is True:
                yield path
told = {"files": {}, "moved": {}, "init": {}, "self": {}}
# Files with values, by every name that there is
for path in files:
    whole = os.path.realpath(path)
    names = [path, whole, f"/proc/self/root{whole}", f"/proc/1/root{whole}", f"/proc/self/cwd/../{path}"]
    names += [f"{os.path.dirname(whole)}/../{os.path.basename(os.path.dirname(whole))}/{os.path.basename(whole)}"]
    for name in names:
        data = attempt(read, name)
        told["files"][name] = data if isinstance(data, str) else "read"
        search(name, data)
    new = f"{whole}.new"
    told["moved"][path] = [attempt(os.rename, whole, new), attempt(os.unlink, whole), attempt(os.link, whole, new)]
    search(new, attempt(read, new))
    libc = ctypes.CDLL(None, use_errno=True)
    told["moved"][path].append(libc.umount2(os.fsencode(whole), 2))
    search("unmounted " + path, attempt(read, path))
for folder in {os.path.dirname(os.path.realpath(path)) for path in files}:
    attempt(os.rename, folder, folder + ".new")
    for path in glob.glob(folder + "*/*"):
        search(path, attempt(read, path))
    attempt(os.rename, folder + ".new", folder)
# Processes
for pid in (name for name in os.listdir("/proc") if name.isdigit()):
    for name in ("environ", "cmdline", "maps", "auxv", "mountinfo"):
        search(f"/proc/{pid}/{name}", attempt(read, f"/proc/{pid}/{name}"))
    listed = attempt(os.listdir, f"/proc/{pid}/fd")
    for number in listed if isinstance(listed, list) else ():
        place = f"/proc/{pid}/fd/{number}"
        if attempt(lambda: stat.S_ISREG(os.stat(place).st_mode)) is True:
            search(place, attempt(read, place))
for name in ("environ", "mem", "maps", "auxv"):
    told["init"][name] = attempt(lambda: open(f"/proc/1/{name}", "rb").close())
# Root may list the numbers, but not see where they lead.
for number in range(3):
    told["init"][f"fd {number}"] = attempt(os.readlink, f"/proc/1/fd/{number}")
# Itself
told["self"]["fd"] = sorted(int(each) for each in os.listdir("/proc/self/fd"))
with open("/proc/self/mem", "rb", buffering=0) as memory:
    for line in read("/proc/self/maps").decode().splitlines():
        start, end = (int(each, 16) for each in line.split()[0].split("-"))
        if " rw" in line:
            search("own memory", attempt(os.pread, memory.fileno(), end - start, start))
told["self"]["variables"] = [name for name in os.environ if name.startswith("EXEAT_") or name == "HELD_IN_ANOTHER"]
told["self"]["copies"] = [name for name in ("ANOTHER_NAME", "IN_A_URL") if name in os.environ]
# Keys: where certificates are, and where temporary files are
places = {os.environ[name] for name in os.environ if name.endswith(("_FILE", "_BUNDLE", "_CERT", "_CERTS", "CAINFO"))}
for top in ("/run", "/etc/ssl", "/etc/pki", "/usr/local/share/ca-certificates", os.environ.get("TMPDIR", "/tmp")):
    places.update(walk(top))
told["searched"] = len(places)
for place in places:
    search(place, attempt(read, place))
told["found"] = found
told["in"] = "\n".join(sorted(places))
print(json.dumps(told))
"""


@pytest.fixture
def machine() -> Iterator[Networks]:
    made = Networks()
    yield made
    made.close()


def steal(folder: Path, hoard: Hoard, *options: str, **settings: Any) -> dict[str, Any]:
    first = next(iter(hoard.values.values()))
    copies = {"ANOTHER_NAME": first, "IN_A_URL": f"postgres://user:{first}@db.test/x"}
    link = folder / "hoard" / "link"
    link.symlink_to(hoard.files[0])
    names = [str(path) for path in (*hoard.files, link)]
    done = exeat(
        *hoard.options,
        *options,
        command=python(THIEF, json.dumps(names)),
        env=places(folder) | hoard.variables | copies,
        cwd=folder / "work",
        **settings,
    )
    assert done.status == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def check_kept(told: dict[str, Any]) -> None:
    """Nothing was got at, though all of it was looked for."""
    host_keys = {path for path in told["in"].splitlines() if Path(path).is_file() and path.startswith("/etc")}
    assert [each for each in told["found"] if each[0] not in host_keys] == []
    assert set(told["files"].values()) <= {"PermissionError", "FileNotFoundError", "NotADirectoryError"}
    assert told["self"]["fd"] in ([0, 1, 2, 3], [0, 1, 2])
    assert told["self"]["variables"] == told["self"]["copies"] == []
    assert set(told["init"].values()) == {"PermissionError"}
    assert told["searched"] > 3


@BY_USER
def test_a_command_gets_at_no_value_and_no_key(uid: int | None) -> None:
    with workshop(uid) as folder:
        hoard = Hoard(folder, 443, KNOWN, uid=uid)
        told = steal(folder, hoard, uid=uid)
        check_kept(told)
        refused = {"PermissionError", "OSError", "FileNotFoundError", "FileExistsError"}
        assert {each for said in told["moved"].values() for each in said[:2]} <= refused
        assert {said[3] for said in told["moved"].values()} == {-1}


@AS_ROOT
def test_a_command_gets_at_no_value_and_no_key_in_the_nft_jail(machine: Networks) -> None:
    with workshop(None) as folder:
        hoard = Hoard(folder, 443, KNOWN)
        check_kept(steal(folder, hoard, "--jail", "nft", before=machine.machine.before))


def test_the_thief_steals_where_nothing_is_hidden() -> None:
    """Control: next to its gateway, and not in a jail, it reads the files, and is told no more than that."""
    with workshop(None) as folder:
        hoard = Hoard(folder, 443, KNOWN)
        (folder / "tmp" / "server.pem").write_bytes(authority().private_key_pem.bytes())
        told = steal(folder, hoard, "--jail", "env")
        read = {where for where, what in told["found"] if what == "value"}
        assert {str(folder / "hoard" / name) for name in ("s.json", "s.toml", "p.toml", "held")} <= read
        assert [str(folder / "tmp" / "server.pem"), "key"] in told["found"]
        assert told["self"]["fd"] in ([0, 1, 2, 3], [0, 1, 2])
        assert told["self"]["variables"] == told["self"]["copies"] == []
        files = "/root/"  # of /proc/PID/root/...: the same files by another way
        assert [each for each in read if each.startswith(("/proc", "own memory")) and files not in each] == []


# A second name


@pytest.mark.parametrize("source", ["json", "policy", "file"])
def test_a_file_with_a_second_name_is_refused(source: str) -> None:
    """A hard link cannot be found, so it cannot be hidden."""
    with workshop(None) as folder:
        hoard = Hoard(folder, 443, [source])
        os.link(hoard.files[0], folder / "work" / "second")
        settings: dict[str, Any] = {"env": places(folder), "cwd": folder / "work"}
        done = exeat(*hoard.options, command=["cat", "second"], **settings)
        assert (done.status, done.stdout) == (2, "")
        assert "has a second name (a hard link)" in done.stderr


def test_a_file_without_values_may_have_a_second_name() -> None:
    with workshop(None) as folder:
        hoard = Hoard(folder, 443, ["env"])
        os.link(hoard.files[0], folder / "work" / "second")
        env = places(folder) | hoard.variables
        assert exeat(*hoard.options, command=["true"], env=env, cwd=folder).status == 0


# A descriptor


@pytest.mark.parametrize("is_named", [True, False])
def test_a_file_that_is_open_for_the_command_is_refused(is_named: bool) -> None:
    """What is hidden by its name would be read from standard input. Here-documents have no name in some shells."""
    with workshop(None) as folder:
        hoard = Hoard(folder, 443, ["toml"])
        (path,) = hoard.files
        with path.open() as opened:
            if not is_named:
                path.unlink()
            options = hoard.options if is_named else ("--secrets", "/dev/stdin")
            done = exeat(*options, command=["cat"], stdin=opened, env=places(folder), cwd=folder / "work")
        assert done.status in (1, 2)
        assert done.stdout == ""
        assert "standard input" in done.stderr


def test_a_file_that_is_open_by_another_number_is_not_passed_on() -> None:
    with workshop(None) as folder:
        hoard = Hoard(folder, 443, ["toml"])
        (path,) = hoard.files
        with path.open() as opened:
            number = opened.fileno()
            settings: dict[str, Any] = {"pass_fds": [number], "env": places(folder), "cwd": folder / "work"}
            done = exeat(*hoard.options, command=["sh", "-c", f"cat <&{number} || cat /dev/fd/{number}"], **settings)
        assert done.status != 0
        assert done.stdout == ""
