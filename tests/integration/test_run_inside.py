"""Inside the jail: its own processes, loopback and names; what decides about the command is out of its sight."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from tests.support.programs import need
from tests.support.runs.running import ANYWHERE, AS_ROOT, BY_USER, environment, exeat, folder_of, python

# Loopback

TALK = """
import socket, sys, threading
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.9.8.7"), (socket.AF_INET6, "::1")):
    with socket.socket(family) as server:
        server.bind((address, 0))
        server.listen()
        def answer():
            with server.accept()[0] as conn:
                conn.sendall(conn.recv(100).upper())
        threading.Thread(target=answer).start()
        with socket.create_connection(server.getsockname()[:2], 10) as conn:
            conn.sendall(b"tcp")
            print(address, conn.recv(100).decode())
    with socket.socket(family, socket.SOCK_DGRAM) as one, socket.socket(family, socket.SOCK_DGRAM) as other:
        one.bind((address, 0))
        other.settimeout(10)
        other.sendto(b"udp", one.getsockname())
        data, sender = one.recvfrom(100)
        one.sendto(data.upper(), sender)
        print(address, other.recv(100).decode())
"""


@BY_USER
def test_processes_inside_talk_over_their_own_loopback(uid: int | None) -> None:
    done = exeat(command=python(TALK), uid=uid, cwd=ANYWHERE)
    expected = [f"{each} {kind}" for each in ("127.0.0.1", "127.9.8.7", "::1") for kind in ("TCP", "UDP")]
    assert (done.stdout.splitlines(), done.stderr) == (expected, "")


def test_ports_below_1024_are_not_to_be_had() -> None:
    """Not even for root: port 53 is where names are answered."""
    program = (
        "import socket\ntry: socket.socket().bind(('127.0.0.1', 81)); print('bound')\n"
        "except OSError as e: print(e.errno)"
    )
    assert exeat(command=python(program)).stdout == "13\n"


def test_the_hosts_loopback_is_not_the_jails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        program = f"import socket; print(socket.socket().connect_ex(('127.0.0.1', {port})))"
        assert exeat(argv=python(program)).stdout == "0\n"
        assert exeat(command=python(program)).stdout == "111\n"


def test_only_loopback_and_a_cable_between_its_own_ends_are_there() -> None:
    done = exeat(command=python("import socket; print(sorted(name for _, name in socket.if_nameindex()))"))
    assert done.stdout == "['exeat0', 'exeat1', 'lo']\n"


# Names


@BY_USER
def test_own_names_are_answered_without_asking_anybody(uid: int | None) -> None:
    program = (
        "import socket\n"
        "print(sorted({a[4][0] for a in socket.getaddrinfo('localhost', 80)}))\n"
        "print(socket.gethostbyname('localhost'), socket.gethostbyname(socket.gethostname()))"
    )
    done = exeat(command=python(program), uid=uid, cwd=ANYWHERE)
    first, second = done.stdout.splitlines()
    assert first == "['127.0.0.1', '::1']"
    assert second.startswith("127.0.0.1 127.")
    assert done.stderr == "", "nothing was blocked"


def test_the_names_of_the_host_are_not_in_hosts(tmp_path: Path) -> None:
    done = exeat(command=["cat", "/etc/hosts", "/etc/resolv.conf"])
    lines = [line.split("#")[0].split() for line in done.stdout.splitlines() if line.split("#")[0].strip()]
    assert ["127.0.0.1", "localhost"] in lines
    assert ["nameserver", "127.0.0.1"] in lines
    assert {line[0] for line in lines if line[0] != "nameserver"} <= {"127.0.0.1", "127.0.1.1", "::1"}


@AS_ROOT
def test_names_of_the_hosts_file_are_asked_for_instead(tmp_path: Path) -> None:
    """A line of the host's own would be a second meaning of a name, past the rules."""
    need("unshare")
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.1.2.3 inner.test\n127.0.1.1 mine.test # own\n::1 six.test\n")
    script = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    before = ["unshare", "-m", "sh", "-c", script, "sh"]
    shown = exeat(command=["cat", "/etc/hosts"], before=before)
    assert "10.1.2.3" in hosts.read_text()
    assert "inner.test" not in shown.stdout
    assert "127.0.1.1 mine.test" in shown.stdout
    assert "::1 six.test" in shown.stdout
    assert "10.1.2.3" in hosts.read_text(), "the host's file is as it was"


@AS_ROOT
@pytest.mark.parametrize("exists", [True, False])
def test_a_resolver_file_that_is_a_link_into_run(tmp_path: Path, exists: bool) -> None:
    """As systemd-resolved has it: /run is covered in the jail, and the link must still lead to a file."""
    need("unshare")
    script = (
        "mount -t tmpfs none /run && mkdir -p /run/systemd/resolve"
        + (" && echo nameserver 192.0.2.9 > /run/systemd/resolve/stub-resolv.conf" if exists else "")
        + f" && cp -a /etc/. {tmp_path}/ && rm -f {tmp_path}/resolv.conf"
        f" && ln -s ../run/systemd/resolve/stub-resolv.conf {tmp_path}/resolv.conf"
        f' && mount --bind {tmp_path} /etc && exec "$@"'
    )
    done = exeat(command=["cat", "/etc/resolv.conf"], before=["unshare", "-m", "sh", "-c", script, "sh"])
    assert (done.stdout, done.stderr) == ("# Names are answered by exeat.\nnameserver 127.0.0.1\n", "")


@BY_USER
def test_a_name_that_is_not_allowed_does_not_resolve_to_the_world(uid: int | None) -> None:
    program = "import socket\ntry: print(socket.gethostbyname('evil.test'))\nexcept OSError as e: print('no', e.errno)"
    done = exeat(command=python(program), uid=uid, cwd=ANYWHERE)
    assert done.stdout.startswith("no")
    assert "evil.test" in done.stderr


# Processes and privileges

LOOK = """
import ctypes, os
def attempt(what):
    try:
        return what()
    except OSError as error:
        return error.errno
print("pids", sorted(int(n) for n in os.listdir("/proc") if n.isdigit())[:2], os.getppid())
for name in ("environ", "mem", "maps", "root", "cwd", "fd/3", "ns/net", "exe"):
    path = f"/proc/1/{name}"
    def look():
        if name in ("root", "cwd", "exe", "fd/3", "ns/net"):
            return os.readlink(path)
        with open(path, "rb") as file:
            return file.read(1)
    print(name, attempt(look))
libc = ctypes.CDLL(None, use_errno=True)
print("ptrace", libc.ptrace(16, 1, 0, 0), ctypes.get_errno())
"""


@BY_USER
def test_init_is_not_to_be_read(uid: int | None) -> None:
    done = exeat(command=python(LOOK), uid=uid, cwd=ANYWHERE, env=environment(SECRET_OF_THE_CALLER="x"))
    lines = done.stdout.splitlines()
    assert lines[0] == "pids [1, 2] 1"
    for line in lines[1:-1]:
        assert line.split(" ", 1)[1] in ("13", "1", "b''"), line
    assert lines[-1].startswith("ptrace -1")
    assert "environ 13" in lines


@BY_USER
def test_no_privilege_is_left(uid: int | None) -> None:
    done = exeat(command=["grep", "-E", "^(Cap|NoNewPrivs|Seccomp:)", "/proc/self/status"], uid=uid, cwd=ANYWHERE)
    assert dict(line.split(":\t") for line in done.stdout.splitlines()) == {
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16),
        "NoNewPrivs": "1",
        "Seccomp": "2",
    }


@AS_ROOT
def test_a_setuid_program_gives_nothing() -> None:
    """As a user: `su` and `sudo` are setuid programs; a copy of id shows what they would get."""
    with folder_of(None) as folder:
        copied = folder / "id"
        shutil.copy(shutil.which("id") or "", copied)
        copied.chmod(0o4755)
        plain = exeat(argv=["setpriv", "--reuid", "65534", "--clear-groups", str(copied), "-u"])
        inside = exeat(command=[str(copied), "-u"], uid=65534, cwd=ANYWHERE)
        if plain.stdout != "0\n":
            pytest.fail(f"{folder} is mounted nosuid, so nothing can be shown there")
        assert inside.stdout == "65534\n"


@AS_ROOT
def test_kernel_settings_are_read_only_for_root() -> None:
    script = (
        "for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sysrq-trigger"
        " /sys/kernel/uevent_helper; do test -e $f || continue;"
        " (cat /dev/null >> $f) 2>/dev/null && echo open $f; done; echo done"
    )
    assert exeat(command=["sh", "-c", script]).stdout == "done\n"


@BY_USER
def test_nothing_can_be_mounted_or_unmounted(uid: int | None) -> None:
    script = (
        "for m in /run /etc/hosts /etc/resolv.conf /proc /run/exeat; do umount -l $m 2>/dev/null && echo gone $m; done;"
        " mount -t tmpfs none /mnt 2>/dev/null && echo mounted; unshare -Ur true 2>/dev/null && echo user;"
        " unshare -n true 2>/dev/null && echo net; echo done"
    )
    assert exeat(command=["sh", "-c", script], uid=uid, cwd=ANYWHERE).stdout == "done\n"


@BY_USER
def test_what_was_put_in_place_cannot_be_changed(uid: int | None) -> None:
    script = (
        "for f in /etc/hosts /etc/resolv.conf /run/exeat/hidden /run/exeat/new; do"
        " (echo x >> $f) 2>/dev/null && echo changed $f; done; echo done"
    )
    done = exeat(command=["sh", "-c", script], uid=uid, cwd=ANYWHERE)
    assert done.stdout == "done\n"


def test_run_is_private_and_can_be_used() -> None:
    inside = "echo x > /run/user/$(id -u)/file && cat /run/user/$(id -u)/file && touch /run/lock/l && ls /run"
    done = exeat(command=["sh", "-c", inside])
    assert done.stdout == "x\nexeat\nlock\nuser\n"
    assert not Path(f"/run/user/{os.getuid()}/file").exists()
    assert not Path("/run/lock/l").exists()


@BY_USER
def test_shared_memory_and_queues_of_the_host_are_out_of_reach(uid: int | None) -> None:
    """System V objects have no path: a namespace of their own is what hides them."""
    made = exeat(argv=["ipcmk", "-Q", "-p", "0666"])
    number = made.stdout.split()[-1]
    try:
        show = ["cat", "/proc/sysvipc/msg"]
        assert any(line.split()[1] == number for line in exeat(argv=show).stdout.splitlines()[1:])
        assert len(exeat(command=show, uid=uid, cwd=ANYWHERE).stdout.splitlines()) == 1
    finally:
        assert exeat(argv=["ipcrm", "-q", number]).status == 0
