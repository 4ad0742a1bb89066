"""The run's authority where programs look for the system's, inside only.

Each test looks from a forked child with a mount namespace of its own: as root, and as an ordinary user who has it
from a user namespace.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from exeat.jail import libc
from exeat.jail.files import kernelfs, truststore
from exeat.policy.host import canonical_host
from exeat.trust import places
from exeat.trust.authority import Authority
from exeat.trust.roots import find_system_roots
from exeat.trust.store import certificates_of, combined_bundle, java_key_store
from tests.support.gateways.redirected import require
from tests.support.jails.forked import UIDS, become
from tests.unit.trust.handshake import Link, trusting

AUTHORITY = Authority(None)
BUNDLE_TEXT = combined_bundle(find_system_roots({}), AUTHORITY.certificate_pem)
STORE = java_key_store(certificates_of(BUNDLE_TEXT))
HASH = AUTHORITY.subject_hash
OWN = "/run/exeat"
CERTS = "/etc/ssl/certs"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def memory(content: bytes) -> int:
    descriptor = os.memfd_create("test")
    os.write(descriptor, content)
    return descriptor


def inside(
    look: Callable[[], object],
    uid: int,
    environ: Mapping[str, str] | None = None,
    argv0: str = "",
    *,
    java: bool = True,
) -> Any:
    """What a function returns in a namespace with the trust files mounted. It must not import anything."""
    require()
    files = [memory(BUNDLE_TEXT), memory(STORE), memory(AUTHORITY.certificate_pem)]
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said: object = None
        try:
            signal.alarm(40)
            _enter(uid)
            bundle_fd, java_fd, ca_fd = files
            truststore.mount_trust(OWN, bundle_fd, java_fd if java else -1, ca_fd, HASH, environ or {}, argv0)
            # As the builder goes on.
            libc.mount(OWN, OWN, None, libc.MS_BIND)
            kernelfs.read_only(OWN)
            said = look()
        except BaseException:
            said = traceback.format_exc()
        finally:
            with os.fdopen(writer, "w") as pipe:
                json.dump(said, pipe)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = json.load(pipe)
    os.waitpid(pid, 0)
    for each in files:
        os.close(each)
    if isinstance(said, str) and said.startswith("Traceback"):
        pytest.fail(said)
    return said


def _enter(uid: int) -> None:
    if os.geteuid() == 0 and uid == 0:
        libc.unshare(libc.CLONE_NEWNS)
    else:
        if os.geteuid() != uid:
            become(uid)
            libc.prctl(libc.PR_SET_DUMPABLE, 1)  # or /proc/self is root's
        gid = os.getegid()
        libc.unshare(libc.CLONE_NEWNS | libc.CLONE_NEWUSER)
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(content)
    libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
    libc.mount("test", "/run", "tmpfs", 0, "mode=755")
    Path(OWN).mkdir()


def digest(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def contents(folder: str) -> dict[str, str]:
    """All names in a folder of certificates, and the hashes of what they lead to."""
    return {path.name: digest(path) for path in sorted(Path(folder).iterdir()) if path.is_file()}


def listed(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def host_state() -> list[object]:
    stores = [path for path in (*places.BUNDLES, *places.JAVA_STORES) if Path(path).is_file()]
    return [contents(CERTS), {path: digest(path) for path in stores}, Path("/proc/self/mountinfo").read_text()]


@pytest.mark.parametrize("uid", UIDS)
def test_the_system_s_bundles_are_replaced_inside_and_the_host_stays_as_it_is(uid: int) -> None:
    before = host_state()
    present = [path for path in places.BUNDLES if Path(path).is_file()]
    assert present, "a system with roots"
    found = inside(lambda: {path: digest(path) for path in present}, uid)
    assert set(found.values()) == {sha(BUNDLE_TEXT)}
    assert host_state() == before


@pytest.mark.parametrize("uid", UIDS)
def test_folders_keep_what_they_have_and_get_one_more(uid: int) -> None:
    before = contents(CERTS)
    replaced = {name for name in before if f"{CERTS}/{name}" in places.BUNDLES}
    found = inside(lambda: contents(CERTS), uid)
    assert found.pop(f"{HASH}.0") == found.pop("exeat.pem") == sha(AUTHORITY.certificate_pem)
    assert {found.pop(name) for name in replaced} == {sha(BUNDLE_TEXT)}
    assert found == {name: content for name, content in before.items() if name not in replaced}


@pytest.mark.parametrize("uid", UIDS)
def test_own_files_are_whole_and_can_be_read_by_all(uid: int) -> None:
    def look() -> list[object]:
        names = listed(OWN)
        return [
            names,
            [digest(f"{OWN}/{name}") for name in names],
            [os.stat(f"{OWN}/{n}").st_mode & 0o777 for n in names],
        ]

    before = os.umask(0o077)
    try:
        found = inside(look, uid)
    finally:
        os.umask(before)
    texts = [BUNDLE_TEXT, AUTHORITY.certificate_pem, STORE]
    assert found == [["ca-bundle.pem", "ca.pem", "cacerts"], [sha(each) for each in texts], [0o644] * 3]


@pytest.mark.parametrize("uid", UIDS)
def test_nothing_of_it_can_be_written(uid: int) -> None:
    def look() -> list[str]:
        said = []
        paths = [
            f"{CERTS}/new",
            f"{CERTS}/exeat.pem",
            "/etc/ssl/certs/ca-certificates.crt",
            f"{OWN}/new",
            f"{OWN}-trust/new",
        ]
        paths += [f"{OWN}-trust/{name}/new" for name in listed(f"{OWN}-trust")]
        for path in paths:
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
                said.append(path)
            except OSError as error:
                said.append(errno.errorcode[error.errno or 0])
        return said

    assert set(inside(look, uid)) == {"EROFS"}


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


@pytest.mark.parametrize("uid", UIDS)
def test_openssl_finds_the_authority_by_its_hash(uid: int, folder: Path) -> None:
    openssl = program("openssl")
    leaf = folder / "leaf.pem"
    link = Link(trusting(AUTHORITY.certificate_pem), AUTHORITY.issue(canonical_host("good.test"))[0], "good.test")
    leaf.write_text(ssl.DER_cert_to_PEM_cert(link.client.getpeercert(binary_form=True) or b""))
    command = [openssl, "verify", "-no-CAfile", "-no-CAstore", "-CApath", CERTS, str(leaf)]

    def look() -> str:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout

    assert inside(look, uid) == f"{leaf}: OK\n"
    assert "OK" not in look()


def fill(root: Path, *names: str) -> list[str]:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of the host")
    return [str(root / name) for name in names]


@pytest.mark.parametrize("uid", UIDS)
def test_bundles_of_python_packages_are_replaced(uid: int, folder: Path) -> None:
    venv = fill(folder / "venv/lib/python3.12/site-packages", *places.IN_PACKAGES)
    conda = fill(folder / "conda", *places.IN_CONDA, "lib/python3.9/site-packages/certifi/cacert.pem")
    in_path = fill(folder / "tools", "bin/tool", "lib64/python3.11/site-packages/certifi/cacert.pem")[1:]
    home = fill(folder / "home/.local/lib/python3.11/site-packages", "certifi/cacert.pem")
    shared = fill(folder / "shared/lib/python3/dist-packages", "certifi/cacert.pem")
    other = fill(folder / "venv/lib/python3.12/site-packages", "other/cacert.pem", "certifi/core.py")
    (folder / "link").symlink_to(folder / "shared/bin/program")
    fill(folder / "shared", "bin/program")
    environ = {
        "VIRTUAL_ENV": str(folder / "venv"),
        "CONDA_PREFIX": str(folder / "conda"),
        "PATH": f"{folder}/none::{folder}/tools/bin",
        "HOME": str(folder / "home"),
    }
    paths = [*venv, *conda, *in_path, *home, *shared]
    found = inside(lambda: [digest(path) for path in paths + other], uid, environ, str(folder / "link"))
    assert found == [sha(BUNDLE_TEXT)] * len(paths) + [sha(b"of the host")] * len(other)
    assert {Path(path).read_text() for path in paths} == {"of the host"}


@pytest.mark.parametrize("uid", UIDS)
def test_key_stores_of_all_jvms_are_replaced(uid: int, folder: Path) -> None:
    modern = fill(folder / "jdk", "lib/security/cacerts")
    older = fill(folder / "home/.sdkman/candidates/java/8", "jre/lib/security/cacerts")
    in_path = fill(folder / "in-path", "lib/security/cacerts", "bin/java")[:1]
    (folder / "in-path/bin/java").chmod(0o755)
    paths = [*modern, *older, *in_path]
    environ = {"JAVA_HOME": str(folder / "jdk"), "HOME": str(folder / "home"), "PATH": str(folder / "in-path/bin")}
    assert inside(lambda: [digest(path) for path in paths], uid, environ) == [sha(STORE)] * 3
    assert inside(lambda: [digest(path) for path in paths], uid, environ, java=False) == [sha(b"of the host")] * 3
    assert {Path(path).read_text() for path in paths} == {"of the host"}


def test_a_command_is_looked_for_in_the_path_and_a_venv_beside_it_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, "venv/bin/python", "here/.venv/lib/python3.13/site-packages/certifi/cacert.pem")
    package = fill(folder / "venv/lib/python3.12/site-packages", "certifi/cacert.pem")[0]
    (folder / "venv/bin/python").chmod(0o755)
    monkeypatch.chdir(folder / "here")
    environ = {"PATH": f"{folder}/venv/bin"}
    found = set(truststore.bundle_paths(environ, "python"))
    assert {package, f"{folder}/here/.venv/lib/python3.13/site-packages/certifi/cacert.pem"} <= found
    assert package in truststore.bundle_paths({"PATH": ""}, f"{folder}/venv/bin/python")
    assert package not in truststore.bundle_paths({"PATH": ""}, "python")


def test_a_file_is_covered_once_and_only_files_are(folder: Path) -> None:
    file = folder / "file"
    file.touch()
    (folder / "link").symlink_to("file")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    names = ("link", "file", "none", "file/below", "loop", "pipe", ".")
    assert truststore._distinct_files([*(str(folder / name) for name in names), "a\0b"]) == [str(file)]


@pytest.mark.parametrize("uid", UIDS)
def test_a_folder_with_files_links_and_folders_is_the_same_but_for_the_authority(
    uid: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs = folder / "etc/certs"
    fill(certs, "plain.pem", "below/deep", f"{HASH}.0")
    fill(folder, "elsewhere", "etc/up")
    for name, target in (
        ("in", "plain.pem"),
        ("up", "../up"),
        ("out", str(folder / "elsewhere")),
        ("broken", "nowhere"),
    ):
        (certs / name).symlink_to(target)
    (folder / "alias").symlink_to(certs)
    anchors = folder / "anchors"
    anchors.mkdir()
    monkeypatch.setattr(places, "HASHED_FOLDERS", (str(folder / "alias"), str(certs), str(folder / "none")))
    monkeypatch.setattr(places, "ANCHOR_FOLDERS", (str(anchors),))

    def look() -> list[object]:
        readable = ("plain.pem", "below/deep", f"{HASH}.0", "in", "up", "out")
        return [
            listed(certs),
            {(certs / name).read_text() for name in readable} == {"of the host"},
            [digest(path) for path in (certs / f"{HASH}.1", certs / "exeat.pem", anchors / "exeat.pem")],
            listed(anchors),
            str((certs / "broken").readlink()),
        ]

    expected = sorted([f"{HASH}.0", f"{HASH}.1", "exeat.pem", "plain.pem", "below", "in", "up", "out", "broken"])
    assert inside(look, uid) == [expected, True, [sha(AUTHORITY.certificate_pem)] * 3, ["exeat.pem"], "nowhere"]
    assert sorted(path.name for path in certs.iterdir()) == sorted(set(expected) - {f"{HASH}.1", "exeat.pem"})


def test_a_folder_with_too_much_in_it_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certs = folder / "certs"
    fill(certs, "a", "b", "c")
    monkeypatch.setattr(places, "HASHED_FOLDERS", (str(certs),))
    monkeypatch.setattr(truststore, "_MAX_ENTRIES", 2)
    assert inside(lambda: listed(certs), UIDS[-1]) == ["a", "b", "c"]


def test_what_is_gone_meanwhile_is_skipped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truststore, "_distinct_files", lambda _: [str(folder / "gone"), f"{folder / 'gone'}/below"])
    assert inside(lambda: True, UIDS[-1]) is True


def test_what_cannot_be_mounted_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str | None, target: str, fstype: str | None, flags: int) -> None:
        raise PermissionError(errno.EPERM, "mount")

    monkeypatch.setattr(truststore, "mount", refuse)
    content = memory(BUNDLE_TEXT)
    with pytest.raises(PermissionError):
        truststore.mount_trust(str(folder), content, content, content, HASH, {}, "")
    os.close(content)


def test_a_target_that_is_there_and_not_found_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(source: str | None, target: str, fstype: str | None, flags: int) -> None:
        raise FileNotFoundError(errno.ENOENT, "mount")

    monkeypatch.setattr(truststore, "mount", lose)
    truststore.put_over(str(folder / "source"), str(folder / "gone"))
    with pytest.raises(FileNotFoundError):
        truststore.put_over(str(folder / "source"), str(folder))
