"""Root in a guest strains the shared files: names, descriptors, devices, links, moves. Outside nothing has changed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator

import pytest

from tests.support.fixtures.vms import Guest
from tests.support.jails.stage import Stage
from tests.support.programs import need
from tests.support.runs.running import python
from tests.support.vms.workplace import Workplace, workplace

pytestmark = pytest.mark.threat("T-G10")

_FILES = 512  # that whoever serves them may have open


@pytest.fixture(scope="module")
def place(stage: Stage, guest: Guest) -> Iterator[Workplace]:
    """Of somebody without rights."""
    with workplace(stage, guest, "user") as made:
        yield made


_KNOWN_FILES = 2_048
_WALK = """
import os
for number in range(3_000):
    with open(f"walked/{number:04}", "w") as file:
        file.write(str(number))
names = sorted(os.listdir("walked"))
read = [int(open(f"walked/{name}").read()) for name in names]
held = []
try:
    while len(held) < 3_000:
        held.append(os.open(f"walked/{names[len(held)]}", os.O_RDONLY))
except OSError as error:
    print(read == list(range(3_000)), os.strerror(error.errno))
"""


def test_a_guest_sees_more_files_than_their_server_may_have_descriptors(place: Workplace) -> None:
    """Its kernel forgets some of them in time. Of those that it holds open it forgets none: the limit is there."""
    need("prlimit")
    few = ["prlimit", f"--nofile={_KNOWN_FILES}:{_KNOWN_FILES}"]
    make = "import os; os.makedirs('walked', exist_ok=True); import resource; "
    more = "resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))\n"
    done = place.run("--guest-root", "--quiet", command=python(make + more + _WALK), before=few)
    assert (done.status, done.stdout) == (0, "True Too many open files\n"), done
    assert len(list((place.project / "walked").iterdir())) == 3_000


_STRAIN = """
import json, os, resource, stat
home = os.environ["HOME"]
CAPABILITY = bytes.fromhex("0100000200200000") + bytes(12)
resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
def tried(act):
    try:
        act()
    except OSError as error:
        return os.strerror(error.errno)
    return "done"
def write(path):
    with open(path, "ab") as file:
        file.write(b"planted")
def replace_repository():
    os.rename(".git", "git")
    os.makedirs(".git/hooks")
    write(".git/hooks/pre-commit")
hook = ".git/hooks/pre-commit"
said = {
    "long name": tried(lambda: write("x" * 256)),
    "control": tried(lambda: write("y" * 255)),
    "linked hook": tried(lambda: os.link(hook, "mine")),
    "moved hook": tried(lambda: os.rename(hook, "mine")),
    "hook in another's place": tried(lambda: (write("other"), os.rename("other", hook))),
    "moved repository": tried(replace_repository),
    "moved keys": tried(lambda: os.rename(f"{home}/.ssh", "keys")),
    "linked key": tried(lambda: os.link(f"{home}/.ssh/id_ed25519", "key")),
    "device": tried(lambda: os.mknod("device", stat.S_IFCHR | 0o666, os.makedev(1, 1))),
    "disk": tried(lambda: os.mknod("disk", stat.S_IFBLK | 0o666, os.makedev(254, 0))),
    "attribute": tried(lambda: os.setxattr("y" * 255, "security.capability", CAPABILITY)),
}
os.mkdir("deep")
os.chdir("deep")
for _ in range(60):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
write("at the bottom")
os.chdir(os.environ["PROJECT"])
held = []
try:
    while len(held) < 3_000:
        held.append(os.open(f"many-{len(held)}", os.O_RDWR | os.O_CREAT, 0o600))
except OSError as error:
    said["many"] = os.strerror(error.errno)
said["held"] = len(held)
for each in held:
    tried(lambda: os.close(each))  # virtiofsd needs a descriptor to close one, and says so
said["afterwards"] = tried(lambda: write("afterwards"))
print(json.dumps(said))
"""


def test_the_shared_files_are_strained_and_hold(place: Workplace) -> None:
    """Whoever serves them may have 512 open: it must not be one that ends by it, and takes the guest with it."""
    need("prlimit")
    hook = place.write("project/.git/hooks/pre-commit", "# old")
    for name in ("HEAD", "objects/x", "refs/x"):  # a repository by its looks
        place.write(f"project/.git/{name}", "ref: refs/heads/main\n")
    place.write(".ssh/id_ed25519", "a key")
    options = ("--guest-root", "--quiet", "--env", f"PROJECT={place.project}")
    few = ["prlimit", f"--nofile={_FILES}:{_FILES}"]
    done = place.run(*options, command=python(_STRAIN), before=few)
    assert done.status == 0, done
    said = json.loads(done.stdout)
    assert (said["control"], said["afterwards"]) == ("done", "done"), said
    for what in set(said) - {"control", "afterwards", "held", "many"}:
        assert said[what] != "done", (what, said)
    assert 100 < said["held"] < _FILES, said
    assert said["many"], said
    assert hook.read_text() == "# old"
    assert hook.stat().st_nlink == 1
    kinds = {stat.S_IFMT(path.lstat().st_mode) for path in place.project.iterdir()}
    assert kinds == {stat.S_IFREG, stat.S_IFDIR}
    assert {path.lstat().st_uid for path in place.project.iterdir()} == {place.uid}
    assert not (place.project / "keys").exists()
    bottom = [names for _, _, names in os.walk(place.project / "deep") if names]
    assert bottom in ([], [["at the bottom"]])
