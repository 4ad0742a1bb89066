"""A process that keeps one engine as long as a worker of the tests wants it, and then removes every trace of it.

    python -m tests.support.engines.keeper SERVICE FOLDER ARCHIVE

Workers connect to FOLDER/keeper.sock. The first line is what they are told: {"socket": …, "pid": …}, or {"failed": …}.
A worker that ends, however it ends, closes its connection; after the last one the engine goes. So a session that is
killed leaves nothing either. An engine that dies is started again, so that it fails the tests of a moment and not all
that come after them. The last worker is told how it died.

The engine has a network and a view of the mounts of its own, which vanish with it. It has no PID namespace of its own:
exeat has to find the processes of its containers. So everything that it starts is kept as a descendant, and killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.engines.covers import Covers, cover, take_own_mounts
from tests.support.engines.services import COVERED, SERVICES, Service
from tests.support.engines.talk import EngineError, ask
from tests.support.own_network import bring_loopback_up

START_S = 60
_STOP_S = 20
_REAP_S = 0.2
_MAX_DEATHS = 5
_CLONE_NEWNET, _MNT_DETACH = 0x40000000, 2
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def main(kind: str, folder: Path, archive: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "keeper.sock"))
        listener.listen()
        keeper = _Keeper(kind, folder)
        try:
            try:
                facts = keeper.start(archive)
            except Exception as error:
                facts = {"failed": f"{type(error).__name__}: {error}\n{keeper.last_words()}"}
            last = _serve(listener, facts, keeper)
            with contextlib.suppress(OSError):  # it was killed
                last.sendall(json.dumps(keeper.deaths).encode())
        finally:
            keeper.stop()
            subprocess.run(["rm", "-rf", str(folder)], check=False)  # several times as fast as Python
            with contextlib.suppress(OSError):  # the last of several removes the folder around them
                folder.with_suffix(".lock").unlink()
                folder.parent.rmdir()
        last.close()  # whoever left last has waited for this


def _serve(listener: socket.socket, facts: dict[str, object], keeper: _Keeper) -> socket.socket:
    """Until the last worker leaves: its connection, still open."""
    told = json.dumps(facts).encode() + b"\n"
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    workers = 0
    while True:
        events = selector.select(_REAP_S)
        keeper.reap()
        keeper.revive()
        for key, _ in events:
            if key.fileobj is listener:
                worker, _ = listener.accept()
                worker.sendall(told)
                selector.register(worker, selectors.EVENT_READ)
                workers += 1
                continue
            worker = key.fileobj  # type: ignore[assignment]
            if asked := worker.recv(100):
                if asked.startswith(b"restart"):
                    keeper.restart()
                worker.sendall(told)
                continue
            selector.unregister(worker)
            workers -= 1
            if workers == 0 and _is_wanted_no_more(keeper.folder):
                return worker
            worker.close()


def _is_wanted_no_more(folder: Path) -> bool:
    """Those who connect hold the lock while they do. It is kept until this process ends."""
    lock = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    return True


class _Keeper:
    """The engine's process, and all that it leaves around."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        self.deaths: list[str] = []
        self._kind = kind
        self._service: Service | None = None
        self._engine: subprocess.Popen[bytes] | None = None
        self._is_up = False  # once it has answered
        self._covers = Covers(COVERED)
        self._groups = set(_control_groups(folder))

    def start(self, archive: Path) -> dict[str, object]:
        _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
        if not any(Path("/sys/fs/cgroup").iterdir()):
            raise RuntimeError("no control groups in /sys; under `ip netns exec` that is so, use `nsenter --net`")
        _check(_libc.unshare(_CLONE_NEWNET))
        take_own_mounts()
        bring_loopback_up()
        self._service = SERVICES[self._kind](self.folder)
        self._cover()
        self._start_engine()
        with archive.open("rb") as image:
            ask(self._service.socket, "POST", "/images/load", data=iter(lambda: image.read(1 << 20), b""))
        self._is_up = True
        return {"socket": str(self._service.socket), "pid": os.getpid()}

    def _cover(self) -> None:
        assert self._service is not None
        self._covers.mount()
        for name, file in self._service.over.items():
            cover(name, file)

    def _start_engine(self) -> None:
        service = self._service
        assert service is not None
        env = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "LANG": "C.UTF-8", **service.env}
        with (self.folder / "log").open("ab") as log:
            self._engine = subprocess.Popen(
                service.argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
            )
        end = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError, EngineError):
                ask(service.socket, "GET", "/_ping")
                break
            if self._engine.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{service.argv[0]} does not start")
            time.sleep(0.02)
        if service.gid is not None:
            os.chown(service.socket, 0, service.gid)

    def reap(self) -> None:
        """The processes whose parents have left them to us. An engine waits for some of them to be gone."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if self._engine is not None and ended.si_pid == self._engine.pid:
                    self._engine.poll()
                else:
                    os.waitpid(ended.si_pid, 0)

    def revive(self) -> None:
        """Start it again if it has died."""
        if not self._is_up or self._engine is None or self._engine.returncode is None:
            return
        if len(self.deaths) == _MAX_DEATHS:
            raise RuntimeError(f"it dies again and again: {self.deaths}")
        self.deaths.append(f"the engine {self._kind} died with {self._engine.returncode}: {self.last_words()}")
        self._start_engine()

    def restart(self) -> None:
        """As a service manager does it."""
        assert self._engine is not None
        self._engine.terminate()
        self._engine.wait(_STOP_S)
        self._start_engine()

    def stop(self) -> None:
        """By force: what is asked of an engine one by one takes long, and nothing of it is to be kept."""
        containers = self._containers()
        _kill_descendants()
        for place in _mounts_under(self.folder):
            _libc.umount2(place.encode(), _MNT_DETACH)
        groups = {*_control_groups(self.folder), *_groups_of(containers)} - self._groups
        for group in sorted(groups, key=len, reverse=True):
            with contextlib.suppress(OSError):
                Path(group).rmdir()
        self._covers.remove()

    def _containers(self) -> list[str]:
        if self._service is None:
            return []
        with contextlib.suppress(OSError, EngineError):
            return [each["Id"] for each in ask(self._service.socket, "GET", "/containers/json?all=1") or ()]
        return []

    def last_words(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")[-1_500:]
        return ""


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _control_groups(folder: Path) -> Iterator[str]:
    """Those that the engine makes, in every hierarchy: Docker's has a name of ours, Podman's has not."""
    for top in ("", *(entry.name for entry in os.scandir("/sys/fs/cgroup") if entry.is_dir())):
        own = Path("/sys/fs/cgroup", top, f"{folder.parent.name}-{folder.name}")
        yield from (str(each) for each in (own, *own.rglob("*"), own.parent / "libpod_parent") if each.is_dir())


def _groups_of(containers: list[str]) -> Iterator[str]:
    """Podman names them after the container."""
    for each in containers:
        yield from (str(group) for group in Path("/sys/fs/cgroup").glob(f"*/libpod_parent/libpod-*{each}*"))
        yield from (str(group) for group in Path("/sys/fs/cgroup").glob(f"libpod_parent/libpod-*{each}*"))


def _kill_descendants() -> None:
    end = time.monotonic() + _STOP_S
    while time.monotonic() < end:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        found = _descendants()
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _descendants() -> list[int]:
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _mounts_under(folder: Path) -> list[str]:
    """The innermost first."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in reversed(places) if Path(place).is_relative_to(folder)]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
