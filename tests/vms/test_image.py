"""`exeat run --vm --image`: the image's files are the guest's, and stay as they are. What is kept is the sandbox's."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures.gateways import StartOrigin
from tests.support.fixtures.vms import Guest
from tests.support.programs import Finished, find
from tests.support.runs.running import AS_ROOT, BY_USER, NOBODY, environment, exeat, folder_of, run_argv
from tests.support.runs.secret_runs import HOST, authority, tls_echo
from tests.support.vms.bootable import bootable_image
from tests.support.vms.images import BUNDLE, MARK, as_qcow2, make_image

_FULL_MIB = 24


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    with folder_of(None) as folder:
        yield make_image(folder)


def _run(
    guest: Guest, image: Path, home: Path, *options: str, command: tuple[str, ...], uid: int | None = None
) -> Finished:
    project = home / "project"
    if not project.exists():
        project.mkdir()
        os.chown(project, home.stat().st_uid, home.stat().st_gid)
    variables = environment(HOME=str(home), EXEAT_HOME=str(home / "state"), OF_THE_HOST="1", NAMED="2")
    named = (*guest.options, "--image", str(image), *options)
    return exeat(*named, command=command, uid=uid, cwd=project, env=variables)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


_LOOK = r"""
cat /etc/mark; echo; echo "user $(id -u)"; echo "in $PWD"; echo "home $HOME"
echo real > in-project; echo changed > "$HOME/new" && echo writable
cat /data/file; echo denied > /data/file || echo read-only
echo "host ${OF_THE_HOST-none} named ${NAMED-none}"
echo "named $(id -un) $(id -gn)"; exit 7
"""


@BY_USER
@pytest.mark.threat("T-V40")
def test_an_image_is_the_root_and_is_never_written(guest: Guest, image: Path, uid: int | None) -> None:
    packed = as_qcow2(image)
    before = _digest(packed), packed.stat().st_mtime_ns
    with folder_of(uid) as home:
        data = home / "data"
        data.mkdir()
        (data / "file").write_text("shown\n")
        os.chown(data, home.stat().st_uid, home.stat().st_gid)
        options = ("--mount", f"{data}:/data:ro", "--env", "NAMED")
        done = _run(guest, packed, home, *options, command=("sh", "-c", _LOOK), uid=uid)
        assert done.status == 7, done.stderr
        number = os.geteuid() if uid is None else uid
        of_user = "/root" if number == 0 else "/home/sandbox"
        name = "root" if number == 0 else "sandbox"
        assert done.stdout.splitlines() == [
            MARK, f"user {number}", f"in {home}/project", f"home {of_user}", "writable", "shown", "read-only",
            "host none named 2", f"named {name} {name}",
        ]  # fmt: skip
        assert (home / "project/in-project").read_text() == "real\n"
        assert (data / "file").read_text() == "shown\n"
        assert list((home / "state").rglob("*disk*")) == []
    assert (_digest(packed), packed.stat().st_mtime_ns) == before


@pytest.mark.threat("T-V40", "T-V41")
def test_the_disk_of_a_sandbox(guest: Guest, image: Path) -> None:
    """It is there again, and has a limit. The image is in the project, which is real, and is protected there."""
    with folder_of(None) as home:
        (home / "project").mkdir()
        image = Path(shutil.copy(image, home / "project/image.raw"))
        before = _digest(image)
        write = "echo kept > /etc/kept; mkdir /etc/folder; echo here > control; echo x >> image.raw || echo protected"
        named = ("--name", "box", "--guest-root")
        done = _run(guest, image, home, "--new", *named, command=("sh", "-c", write))
        assert (done.status, done.stdout) == (0, "protected\n"), done.stderr
        assert (home / "project/control").exists()
        assert "disk is kept in the sandbox" in done.stderr
        fill = "cat /etc/kept; dd if=/dev/urandom of=/etc/folder/big bs=1M count=50 conv=fsync; echo still here"
        limited = (*named, "--layer-size", f"{_FULL_MIB}MiB")
        done = _run(guest, image, home, *limited, command=("sh", "-c", fill))
        assert done.stdout == "kept\nstill here\n", done.stderr
        assert "error" in done.stderr, "it got no error for what has no place"
        assert f"disk was full: it may take {_FULL_MIB} MiB (--layer-size)" in done.stderr
        disk = home / "state/sandboxes/box/disk.qcow2"
        assert _FULL_MIB - 4 < disk.stat().st_size >> 20 <= _FULL_MIB
        assert _digest(image) == before


# Whom a program trusts that is told nothing, and what one trusts that goes by the variables.
_FETCH = """
import os, ssl, sys, urllib.request
def status(where):
    try:
        context = ssl.create_default_context(cafile=where)
        return urllib.request.urlopen(sys.argv[1], context=context, timeout=20).status
    except OSError as error:
        return error
print(status("/etc/ssl/certs/ca-certificates.crt"), status(os.environ.get("SSL_CERT_FILE")))
missing = {name for name, value in os.environ.items() if value.startswith("/run/exeat") and not os.path.isfile(value)}
print(sorted(missing), open("/etc/ssl/certs/ca-certificates.crt").readline().strip())
"""


def test_programs_of_an_image_trust_the_run(guest: Guest, image: Path, start_origin: StartOrigin) -> None:
    port = start_origin(tls_echo()).port
    with folder_of(None) as home:
        ca = home / "upstream.pem"
        authority().cert_pem.write_to_path(ca)
        named = ("--add-host", f"{HOST}:127.0.0.1", "--allow", f"{HOST}:{port}", "--upstream-ca", str(ca))
        command = ("/usr/bin/python3", "-I", "-c", _FETCH, f"https://{HOST}:{port}/")
        options = ("--intercept", "all", *named, "--mount", "/usr:/usr:ro")
        done = _run(guest, image, home, *options, command=command)
    assert done.stdout.splitlines() == ["200 200", f"[] {BUNDLE.strip()}"], done.stderr


@pytest.mark.every_vm
def test_a_disk_without_a_root(guest: Guest) -> None:
    """The sentence, and the console."""
    with folder_of(None) as home:
        empty = home / "empty.raw"
        empty.write_bytes((bytes(510) + b"\x55\xaa").ljust(16 << 20, b"\0"))
        done = _run(guest, empty, home, command=("true",))
    assert done.status == 2
    assert "none has a file system that this kernel knows and /etc" in done.stderr
    assert "the guest's console" in done.stderr


@pytest.mark.every_vm
def test_a_disk_that_boots_nothing_by_itself_ends_at_once(guest: Guest, image: Path) -> None:
    """Not when ten minutes are over: a disk with files and without a boot loader."""
    with folder_of(None) as home:
        options = ["--vm", "--accel", "tcg", "--image", str(image), "--own-init"]
        done = exeat(*options, command=("true",), cwd=home, env=environment(HOME=str(home)))
    assert done.status == 2, done
    assert "the guest has not booted" in done.stderr
    assert "No bootable device" in done.stderr  # on its console


@AS_ROOT
@pytest.mark.threat("T-V42")
def test_qemu_is_never_that_of_a_kept_layer(guest: Guest) -> None:
    """Root in a guest can replace the machine's programs, in its layer. The next QEMU is the machine's all the same."""
    with folder_of(None) as home:
        project = home / "project"
        project.mkdir()
        ran = project / "ran"
        variables = environment(HOME=str(home), EXEAT_HOME=str(home / "state"))
        qemu = str(Path(find("qemu-system-x86_64")).resolve())
        libraries = subprocess.check_output(["ldd", qemu], text=True)
        library = next(line.split()[2] for line in libraries.splitlines() if "libglib-2" in line)
        plant = (
            f"printf '#!/bin/sh\\ntouch {ran}\\n' > /tmp/planted && chmod 755 /tmp/planted"
            f" && cp /tmp/planted /tmp/library && mv /tmp/planted {qemu} && mv /tmp/library {Path(library).resolve()}"
        )
        done = exeat("--new", "--name", "box", command=("sh", "-c", plant), cwd=project, env=variables)
        assert done.status == 0, done.stderr
        control = subprocess.run(
            run_argv(("--quiet", "--name", "box"), (qemu,)),
            cwd=project,
            env=variables,
            capture_output=True,
            check=False,
        )
        assert ran.exists(), control.stderr
        ran.unlink()
        command = ("sh", "-c", f"head -n 1 {qemu}; head -n 1 {library}; echo more > /opt/kept")
        done = exeat(*guest.options, "--name", "box", command=command, cwd=project, env=variables)
        assert done.stdout == "#!/bin/sh\n#!/bin/sh\n", done.stderr
        assert not ran.exists()
        done = exeat("--name", "box", command=("cat", "/opt/kept"), cwd=project, env=variables)
        assert done.stdout == "more\n", done.stderr


_ON_ITS_OWN = """
echo "first $(cat /proc/1/comm)"; echo "as $(id -u) in $PWD on $(hostname)"; echo real > in-project
/usr/bin/python3 -I -c "$1" "$2"; read typed; echo "typed $typed"; exit 7
"""


@pytest.mark.every_vm
@pytest.mark.timeout(1_300)
def test_an_image_that_boots_by_itself(guest: Guest, start_origin: StartOrigin) -> None:
    """With its own kernel, systemd and cloud-init, which starts the agent; emulated, that takes minutes."""
    image = bootable_image()
    before = image.stat().st_mtime_ns
    port = start_origin(tls_echo()).port
    with folder_of(None) as home:
        ca, project = home / "upstream.pem", home / "project"
        project.mkdir()
        authority().cert_pem.write_to_path(ca)
        named = ("--add-host", f"{HOST}:127.0.0.1", "--allow", f"{HOST}:{port}", "--upstream-ca", str(ca))
        options = ("--vm", "--accel", "tcg", "--image", str(image), "--own-init", "--intercept", "all", *named)
        command = ("sh", "-c", _ON_ITS_OWN, "sh", _FETCH, f"https://{HOST}:{port}/")
        done = subprocess.run(
            run_argv(options, command),
            cwd=project,
            env=environment(HOME=str(home), EXEAT_HOME=str(home / "state")),
            input="hello\n",
            capture_output=True,
            text=True,
            timeout=1_200,
            check=False,
        )
        assert done.returncode == 7, done.stderr
        lines = done.stdout.splitlines()
        assert lines[:2] == ["first systemd", f"as {os.geteuid()} in {project} on sandbox"]
        assert lines[2] == "200 200"
        assert lines[3].startswith("[] ")
        assert lines[4] == "typed hello"
        assert (project / "in-project").read_text() == "real\n"
    assert image.stat().st_mtime_ns == before


@pytest.mark.parametrize("uid", [NOBODY if os.geteuid() == 0 else None])
def test_a_layer_is_the_same_with_a_guest_and_without(guest: Guest, uid: int | None) -> None:
    """Of someone without rights; for root, the test above shows it."""
    with folder_of(uid) as home:
        project = home / "project"
        project.mkdir()
        os.chown(project, home.stat().st_uid, home.stat().st_gid)
        settings: dict[str, Any] = {"cwd": project, "env": environment(HOME=str(home), EXEAT_HOME=str(home / "state"))}
        command = ("sh", "-c", "echo before > ~/before")
        done = exeat("--new", "--name", "box", command=command, uid=uid, **settings)
        assert done.status == 0, done.stderr
        command = ("sh", "-c", "cat ~/before && rm ~/before && echo after > ~/after")
        done = exeat(*guest.options, "--name", "box", command=command, uid=uid, **settings)
        assert (done.status, done.stdout) == (0, "before\n"), done.stderr
        done = exeat("--name", "box", command=("sh", "-c", "cat ~/after; ls ~"), uid=uid, **settings)
        assert done.stdout.split() == ["after", "after", "project"], done.stderr
        assert sorted(path.name for path in home.iterdir()) == ["project", "state"]
