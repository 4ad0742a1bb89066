"""A guest whose root is hostile: the machine that it sees, the channel to exeat, what it can use up, how it can end."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.fixtures.programs import StartWeb
from tests.support.fixtures.vms import Guest
from tests.support.jails.stage import Stage
from tests.support.origins.web import hello
from tests.support.programs import Finished
from tests.support.runs.running import descendants_of, hosts, python
from tests.support.vms.workplace import Workplace, workplace

_MEMORY = 256 << 20
_OF_QEMU_ITSELF = 512 << 20  # what it translates, its own code and data
# Classes of devices, as PCI has them: a bridge, a network card, a serial port and what has no class (virtio's others).
_CLASSES = {"0600", "0601", "0c05", "0200", "0780", "0180", "00ff", "0680", "0101"}


@pytest.fixture(scope="module")
def place(stage: Stage, guest: Guest) -> Iterator[Workplace]:
    """Of someone without rights, with a file of root's in the project."""
    with workplace(stage, guest, "user") as made:
        yield made


def _as_guest_root(place: Workplace, command: Sequence[str], *options: str) -> Finished:
    return place.run("--guest-root", "--quiet", *options, command=command)


_LOOK = """
import glob, json, os, socket, struct, sys
def read(path):
    try:
        return open(path, "rb").read()
    except OSError as error:
        return type(error).__name__.encode()
said = {"classes": sorted(read(path).decode()[2:6] for path in glob.glob("/sys/bus/pci/devices/*/class"))}
said["ports"] = sorted(read(path).decode().strip() for path in glob.glob("/sys/class/virtio-ports/*/name"))
said["ioports"] = read("/proc/ioports").decode()
said["disks"] = os.listdir("/sys/block")
strings = read("/sys/firmware/dmi/entries/11-0/raw").split(b"\\0")
said["strings"] = [each.decode() for each in strings if b"exeat:" in each]
said["command line"] = read("/proc/cmdline").decode()
said["opened"] = []
for path in glob.glob("/dev/vport*"):
    try:
        os.close(os.open(path, os.O_RDWR))
        said["opened"].append(path)
    except OSError:
        pass
said["root's"] = [read(path).decode(errors="replace") for path in sys.argv[1:]]
# DHCP: an address is all that it is told
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
sock.bind(("", 68))
sock.settimeout(5)
head = struct.pack("!BBBBIHH", 1, 1, 6, 0, 7, 0, 0x8000) + bytes(16) + b"\\x52\\x54\\0\\x12\\x34\\x56" + bytes(202)
sock.sendto(head + b"\\x63\\x82\\x53\\x63" + b"\\x35\\x01\\x01\\xff", ("255.255.255.255", 67))
try:
    answer = sock.recv(2000)
    options, at = {}, 240
    while at < len(answer) and answer[at] != 255:
        options[answer[at]] = answer[at + 2 : at + 2 + answer[at + 1]].hex()
        at += 2 + answer[at + 1]
    said["dhcp"] = [answer[44:236].strip(b"\\0").decode(errors="replace"), options]
except OSError as error:
    said["dhcp"] = ["", {}]
print(json.dumps(said))
"""


@pytest.mark.threat("T-G2", "T-G3", "T-G6", "T-G7")
def test_the_machine_that_a_guest_sees_has_nothing_to_spare(place: Workplace) -> None:
    ours = place.project / "of-root"
    ours.write_text("of root")
    ours.chmod(0o600)
    marked = place.environ | {"EXEAT_MARK": "mark-of-the-caller"}
    done = place.run("--guest-root", "--quiet", command=python(_LOOK, "/etc/shadow", str(ours), "argument"), env=marked)
    assert done.status == 0, done
    said = json.loads(done.stdout)
    assert set(said["classes"]) <= _CLASSES, said["classes"]
    assert said["ports"] == ["exeat.control", "exeat.err", "exeat.in", "exeat.out"]
    assert said["opened"] == []  # the agent has them, and each has one holder
    assert [disk for disk in said["disks"] if not disk.startswith(("loop", "ram"))] == []
    for device in ("fdc", "vga", "parport", "isa-debug-exit", "ehci", "uhci"):
        assert device not in said["ioports"].lower(), said["ioports"]
    told = "".join(said["strings"])
    keys = {each.partition(":")[2].partition("=")[0] for each in said["strings"]}
    assert {"uid", "cwd", "root"} <= keys
    for secret in ("mark-of-the-caller", "argument"):
        assert secret not in keys
        assert secret not in f"{told} {said['command line']}"
    if place.uid != 0:
        assert said["root's"][:2] == ["PermissionError"] * 2
    boot_file, options = said["dhcp"]
    assert boot_file == ""
    assert set(options) <= {"53", "54", "1", "3", "6", "51"}, options  # addresses, and for how long


# Takes the agent's end of the control port: root in a guest may, and exeat must expect it.
_TAKE = """
import ctypes, glob, os, sys, time
name = next(p for p in glob.glob("/sys/class/virtio-ports/*") if open(p + "/name").read().strip() == "exeat.control")
device = "/dev/" + os.path.basename(name)
number = next(int(fd) for fd in os.listdir("/proc/1/fd") if os.readlink(f"/proc/1/fd/{fd}") == device)
control = ctypes.CDLL(None).syscall(438, os.pidfd_open(1), number, 0)
assert control >= 0
os.set_blocking(control, True)
def frame(kind, body, length=None):
    return bytes([kind, 0, 0, 0]) + (len(body) if length is None else length).to_bytes(4, "little") + body
def send(data):
    while data:
        data = data[os.write(control, data[:30_000]):]
open("took-it", "w").close()  # what it printed might come later than the lie
"""
_LIES = {
    "garbage": ("send(os.urandom(1_000_000))", None),
    "a frame without end": ("send(frame(69, b'', 0xFFFFFFFF) + bytes(500_000))", None),
    "a failure with control characters": (
        "send(frame(67, bytes(4) + b'\\x1b]0;owned\\x07\\x1b[2J\\r\\nexeat: all fine'))",
        None,
    ),
    "a flood, and a false end": (
        "send(frame(65, (1).to_bytes(4, 'little')) * 100_000 + frame(66, b'') * 100_000);"
        "send(frame(69, (99 << 8).to_bytes(4, 'little') + bytes(16)))",
        99,
    ),
}


@pytest.mark.threat("T-G8")
@pytest.mark.parametrize("lie", _LIES)
def test_whoever_has_the_agents_channel_has_no_more_than_a_command(place: Workplace, lie: str) -> None:
    """The run ends, with a sentence or with the status that was claimed. A command can claim any status as well."""
    act, status = _LIES[lie]
    done = _as_guest_root(place, python(f"{_TAKE}\n{act}\ntime.sleep(1000)"))
    (place.project / "took-it").unlink()
    assert done.status == (128 + signal.SIGKILL if status is None else status), done
    assert status is not None or done.stderr.startswith("exeat: "), done
    assert "\x1b" not in done.stderr
    assert "\nexeat: all fine" not in done.stderr


# Says something for the console first, with control characters in it.
_END = "import os; os.write(os.open('/dev/console', os.O_WRONLY), b'\\x1b]0;owned\\x07\\x1b[2Jlast words\\n');"
_ENDS = {
    "reset": "open('/proc/sysrq-trigger', 'w').write('b')",
    "panic": "open('/proc/sysrq-trigger', 'w').write('c')",
    "power off": "open('/proc/sysrq-trigger', 'w').write('o'); __import__('time').sleep(1000)",
}


@pytest.mark.threat("T-G9")
@pytest.mark.parametrize("end", _ENDS)
def test_a_guest_that_ends_itself_ends_the_run(place: Workplace, end: str) -> None:
    done = _as_guest_root(place, python(f"{_END}{_ENDS[end]}"))
    assert (done.status, done.stdout) == (128 + signal.SIGKILL, ""), done
    assert done.stderr.startswith("exeat: the guest"), done
    assert "\x1b" not in done.stderr
    assert "\x07" not in done.stderr


_USE_UP = """
import os, resource, signal, socket, sys, time, urllib.request
url, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
def fetch():
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30).status
print("before", fetch(), flush=True)
held = []
address = socket.gethostbyname(host)
for _ in range(1_000):
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex((address, port))
    held.append(sock)
time.sleep(1)
print("connections", len(held), flush=True)
for sock in held:
    sock.close()
eater = os.fork()
if eater == 0:
    open("/proc/self/oom_score_adj", "w").write("1000")
    blocks = []
    while True:
        blocks.append(b"x" * (8 << 20))
print("memory", os.WTERMSIG(os.waitpid(eater, 0)[1]), flush=True)
children = []
try:
    while len(children) < 300:
        child = os.fork()
        if child == 0:
            time.sleep(1000)
        children.append(child)
except OSError:
    pass
print("processes", len(children) > 100, flush=True)
for child in children:
    os.kill(child, signal.SIGKILL)
for attempt in range(10):
    try:
        print("after", fetch(), flush=True)
        break
    except OSError:
        time.sleep(1)
sys.stdin.read()
"""


@pytest.mark.every_vm
@pytest.mark.threat("T-G4")
def test_a_guest_that_uses_everything_up_stays_within_its_own(place: Workplace, start_web: StartWeb) -> None:
    """Thousands of connections, all of its memory, thousands of processes; then it works as before."""
    web = start_web(hello, "http")
    url = f"http://good.test:{web.port}/"
    options = ("--memory", "256m", "--quiet", "--guest-root", "--allow", f"good.test:{web.port}", *hosts("good.test"))
    command = python(_USE_UP, url, "good.test", str(web.port))
    argv = place.argv(*options, command=command)
    said = []
    with subprocess.Popen(
        argv, env=place.environ, cwd=place.project, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for line in child.stdout:
            said.append(line.strip())
            if line.startswith("after"):
                assert _peak(child.pid) < _MEMORY + _OF_QEMU_ITSELF
                child.stdin.close()
    assert said == ["before 200", "connections 1000", "memory 9", "processes True", "after 200"]
    assert child.returncode == 0


# Packets for QEMU's network, as large as the card takes them: whole, or the first part of one whose rest never comes.
# QEMU keeps those for half a minute.
_PARTS = """
import fcntl, os, socket, struct, sys
more_comes, count = int(sys.argv[1]), int(sys.argv[2])
card = next(name for _, name in socket.if_nameindex() if name != "lo")
sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
fcntl.ioctl(sock, 0x8922, struct.pack("16si12x", card.encode(), 65_000))  # SIOCSIFMTU
body = struct.pack("!HHHH", 4000, 9, 60_000, 0) + bytes(59_992)
for number in range(count):
    head = struct.pack("!BBHHHBBH", 0x45, 0, 60_020, number, more_comes << 13, 64, 17, 0)
    head += socket.inet_aton("10.0.2.15") + socket.inet_aton("10.9.9.9")
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + head[12:]
    sock.sendto(head + body, (card, 0x800, 0, 0, b"\\x52\\x55\\x0a\\x00\\x02\\x02"))
print("sent", flush=True)
"""
_MORE_THAN_IT_HAS = 20_000  # of 60 kB


@pytest.mark.every_vm
@pytest.mark.threat("T-G12")
@pytest.mark.parametrize("more_comes", [0, 1], ids=["whole", "parts"])
def test_what_qemu_keeps_for_a_guest_is_bounded(place: Workplace, more_comes: int) -> None:
    """Whole packets are the control: as many of them, and as large, are no more than traffic."""
    command = python(_PARTS, str(more_comes), str(_MORE_THAN_IT_HAS))
    done = _as_guest_root(place, command, "--memory", "256m")
    if more_comes:
        assert (done.status, done.stdout) == (128 + signal.SIGKILL, ""), done
        assert done.stderr.startswith("exeat: QEMU used more memory than a guest may make it use"), done
    else:
        assert (done.status, done.stdout) == (0, "sent\n"), done


def _peak(pid: int) -> int:
    """The most memory that QEMU has had, in bytes."""
    for each in descendants_of(pid):
        status = Path(f"/proc/{each}/status").read_text()
        if "\nName:\tqemu" in f"\n{status}":
            return int(status.split("VmHWM:")[1].split()[0]) << 10
    raise AssertionError("no QEMU")
