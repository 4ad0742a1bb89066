"""The agent as process 1 of real guests, with nothing of exeat around QEMU: what it makes of a guest."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.jail.vm.protocol import Kind
from tests.support.fixtures.vms import Guest
from tests.support.programs import find, run
from tests.support.vms.agent_guest import boot, make_root, oem_strings
from tests.support.vms.agent_process import AgentProcess, start_payload

_PATH = {"PATH": "/bin"}
_FIRMWARE = (
    *("version=1", "gid=1000", "groups=5,1000", "cwd=/work", "hostname=of-firmware"),
    *("net4=10.0.2.15/24,10.0.2.2", "net6=fec0::15/64,fec0::2", "resolver=10.0.2.3"),
)
# What else may be among the strings of a machine: of others, of no key, of none that is known, as long as it gets.
_ODD = (
    b"of others",
    b"exeat:",
    b"exeat:=",
    b"exeat:hostname",
    b"exeat:\xff=\xfe",
    b"x" * 1000,
    b"exeat:what=" + b"y" * 1000,
)


def _cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Kernels are unpacked once for all tests of this run."""
    return str(tmp_path_factory.getbasetemp())


def _start(guest: AgentProcess, script: str, **others: str) -> None:
    guest.start("sh", "-c", script, environ=_PATH, **others)
    guest.hear_kind(Kind.RUNNING)


def _facts(guest: AgentProcess) -> dict[str, str]:
    """What the script said: names in lines of their own, and what follows each."""
    facts: dict[str, str] = {}
    name = ""
    for line in guest.out.decode().splitlines():
        if line.startswith("## "):
            name = line[3:]
            facts[name] = ""
        else:
            facts[name] += line + "\n"
    return facts


@contextlib.contextmanager
def _greeting(text: bytes) -> Iterator[int]:
    """A server on this machine's loopback, whose port it is. It greets and echoes."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(text)
                    while data := connection.recv(1000):
                        connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


_LOOK = """
echo '## id'; id -u; id -g; id -G; umask; pwd; hostname; date -u +%Y-%m-%d
echo '## net'; ip addr show eth0; ip route; ip -6 route
echo '## names'; cat /etc/resolv.conf; readlink /etc/resolv.conf
echo '## mounts'; cat /proc/mounts
echo '## far'; echo 4 | nc -w 20 127.0.0.1 PORT; echo 6 | nc -w 20 ::1 PORT
echo '## refused'; nc 127.0.0.1 CLOSED </dev/null; echo over
echo '## agent'; kill -9 1 2>&1; cat /proc/1/environ 2>&1; ls /proc/1/fd 2>&1; cat /dev/vport* 2>&1 | grep -c denied
echo '## own'; kill -0 $$ && cat /proc/$$/environ | grep -c PATH; ls /proc/$$/fd | grep -c 0
echo '## streams'; echo reopened >/dev/stdout; echo error >/dev/stderr; ls -l /proc/self/fd | grep -c pipe
echo '## dead'; (sleep 0.01 &); (sleep 0.01 &); sleep 0.3; ps -o stat | grep -c Z
echo '## control'; ps -o stat | grep -c S
echo '## limits'; ulimit -n; ulimit -Hn; ulimit -c
echo '## unasked'; ls /modules /init /.exeat 2>&1 | grep -c 'No such'; ls -ld /dev/shm /dev/pts /dev/mqueue | wc -l
echo '## pipe'; (while :; do echo x; done) >&2; echo $?
echo '## input'; md5sum
echo '## flood'; dd if=/dev/zero bs=32768 count=40 2>/dev/null
"""


def test_a_guest_that_has_a_folder_of_this_machine_as_its_root(
    guest: Guest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = make_root(tmp_path / "root")
    (root / "etc/resolv.conf").symlink_to("../run/names/resolv.conf")
    (root / "run/names").mkdir()
    (root / "run/names/resolv.conf").write_text("nameserver 192.0.2.1\n")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        closed = unused.getsockname()[1]
    with _greeting(b"greetings\n") as port:
        firmware = oem_strings(_ODD) + oem_strings(
            ["root=virtiofs:root", "uid=1000", f"forward={port}", f"forward={closed}", *_FIRMWARE]
        )
        with boot("virtiofs", root, firmware, kernel=guest.kernel, cache=_cache(tmp_path_factory)) as process:
            script = _LOOK.replace("PORT", str(port)).replace("CLOSED", str(closed))
            _start(process, script, hostname="of-start", time="1700000000.5", entropy="5a" * 64, umask="0027")
            process.wait_for_output(b"## pipe")
            process.stderr.close()
            typed = os.urandom(1_000_000)
            process.type(typed)
            process.end_input(len(typed))
            # All that it wrote is kept for us, however late we read.
            assert process.exited(is_late=True).status == 0
            process.send(Kind.END)
            assert process.hear() is None  # it has powered off
    facts = _facts(process)
    assert facts["id"].split() == ["1000", "1000", "1000", "5", "0027", "/work", "of-start", "2023-11-14"]
    assert "inet 10.0.2.15/24" in facts["net"]
    assert "inet6 fec0::15/64" in facts["net"]
    assert "tentative" not in facts["net"]
    assert "default via 10.0.2.2 dev eth0" in facts["net"]
    assert "default via fec0::2 dev eth0" in facts["net"]
    assert facts["names"] == "nameserver 10.0.2.3\n../run/names/resolv.conf\n"
    assert (root / "run/names/resolv.conf").read_text() == "nameserver 192.0.2.1\n"
    mounts = {line.split()[1]: line.split() for line in facts["mounts"].splitlines()}
    assert mounts["/"][2] == "virtiofs"
    assert {"nosuid", "nodev"} <= set(mounts["/"][3].split(","))
    assert {"/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue"} <= set(mounts)
    assert facts["far"] == "greetings\n4\ngreetings\n6\n"
    assert facts["refused"] == "over\n"
    assert facts["agent"].count("ermitted") + facts["agent"].count("denied") == 3
    assert facts["agent"].splitlines()[-1] == "4"
    assert facts["own"].split() == ["1", "1"]  # the control: it may do all that to itself
    assert facts["streams"] == "reopened\n3\n"
    assert facts["dead"] == "0\n"
    assert int(facts["control"]) > 2
    assert facts["limits"].split() == ["1024", "524288", "0"]
    assert facts["unasked"].split() == ["3", "3"]
    assert facts["pipe"] == f"{128 + signal.SIGPIPE}\n"
    assert facts["input"] == f"{hashlib.md5(typed).hexdigest()}  -\n"
    assert facts["flood"].rstrip("\n") == "\0" * 40 * 32768
    assert process.err.startswith(b"error\n")


def test_a_guest_with_a_terminal_over_9p(
    guest_9p: Guest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = make_root(tmp_path / "root")
    firmware = oem_strings(["root=9p:root", "uid=1000", *_FIRMWARE])
    with boot("9p", root, firmware, kernel=guest_9p.kernel, cache=_cache(tmp_path_factory)) as process:
        script = (
            "tty; stty size; stat -c %u:%g:%a $(tty); grep ' / ' /proc/mounts; read x; echo got $x; cat; sleep 1000"
        )
        _start(process, script, terminal="33x101")
        process.wait_for_output(b" / 9p ")
        assert process.out.startswith(b"/dev/pts/0\r\n33 101\r\n1000:5:620\r\n")
        process.send(Kind.WINDOW, struct.pack("<HH", 20, 40))
        process.type(b"\x1a")  # Ctrl-Z
        assert process.hear_kind(Kind.STOPPED) == bytes([signal.SIGTSTP])
        process.signal(signal.SIGCONT)
        process.type(b"typed\n")
        process.wait_for_output(b"got typed\r\n")
        process.type(b"\x03")  # Ctrl-C
        assert os.waitstatus_to_exitcode(process.exited().status) == -signal.SIGINT
        assert b"nodev" in process.out


def test_a_guest_with_a_disk(guest: Guest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    tree = make_root(tmp_path / "tree")
    (tree / "etc/resolv.conf").symlink_to("../run/systemd/resolve/stub-resolv.conf")  # there is none before it runs
    (tree / "etc/ssl/certs").mkdir(parents=True)
    (tree / "etc/ssl/certs/ca-certificates.crt").write_text("of the image")
    (tree / "etc/ssl/cert.pem").symlink_to("certs/ca-certificates.crt")
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run([find("mke2fs", "/usr/sbin"), "-q", "-t", "ext4", "-d", str(tree), str(disk)], check=True)
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "project").write_text("of this machine\n")
    firmware = oem_strings(["root=disk:", "uid=0", "mount=virtiofs:root:/deep/in/it:ro", *_FIRMWARE])
    with boot("virtiofs", shared, firmware, kernel=guest.kernel, disk=disk, cache=_cache(tmp_path_factory)) as process:
        script = """
        echo '## root'; grep ' / ' /proc/mounts; id -u; echo kept >/kept
        echo '## names'; cat /etc/resolv.conf
        echo '## shared'; cat /deep/in/it/project; touch /deep/in/it/new 2>&1
        echo '## file'; cat /opt/some/file; stat -c %a /opt/some/file
        echo '## trust'; cat /etc/ssl/certs/ca-certificates.crt
        echo '## again'; cat /etc/ssl/cert.pem
        """
        others = {"file": f"/opt/some/file:0640:{b'content:'.hex()}", "ca": b"of the run\n".hex()}
        process.send(Kind.START, start_payload("sh", "-c", script, environ=_PATH, **others))
        process.hear_kind(Kind.RUNNING)
        assert process.exited().status == 0
        process.send(Kind.END)
        assert process.hear() is None
    facts = _facts(process)
    assert facts["root"].split()[2] == "ext4"
    assert facts["root"].split()[-1] == "0"
    assert facts["names"] == "nameserver 10.0.2.3\n"
    assert facts["shared"].startswith("of this machine\n")
    assert "Read-only" in facts["shared"]
    assert facts["file"] == "content:640\n"
    assert facts["trust"] == facts["again"] == "of the image\nof the run\n"
    # It was left in order, and what the image had is as it was.
    assert run([find("e2fsck", "/usr/sbin"), "-fn", str(disk)], {}).status == 0
    kept, statistics = (
        run([find("debugfs", "/usr/sbin"), "-R", what, str(disk)], {}) for what in ("cat /kept", "stats")
    )
    assert kept.stdout == "kept\n"
    assert "needs_recovery" not in statistics.stdout


def test_a_guest_whose_root_cannot_be_mounted(
    guest: Guest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    firmware = oem_strings(["root=9p:root", "uid=1000", *_FIRMWARE])  # which this kernel does not have
    with boot("virtiofs", None, firmware, kernel=guest.kernel, cache=_cache(tmp_path_factory)) as process:
        process.start("true", environ=_PATH)
        told = process.hear_kind(Kind.FAILED)
        assert told == struct.pack("<I", errno.ENODEV) + b"the root cannot be mounted: 9p:root"
        assert process.hear() is None  # it has powered off by itself
        assert b"exeat: the root cannot be mounted: 9p:root: error 19" in process.said
