"""Held again from outside, in a jail that stands."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from exeat.jail.files.holding import Holdings, Place, hold_again
from exeat.jail.libc import MS_BIND, MS_REC, mount
from tests.support.gateways.redirected import require
from tests.support.jails.forked import NOBODY, UIDS, USERS, attempt, own_mounts
from tests.support.runs.running import folder_of


class Jail:
    """A process in namespaces of its own that holds things, and then does what it is told."""

    def __init__(self, folder: Path, user: str) -> None:
        self.root, self.own = str(folder / "project"), str(folder / "own")
        self.user = user
        for name in ("project/.git", "own"):
            (folder / name).mkdir(parents=True)
        (folder / "project/.git/config").write_text("first")
        (folder / "project/.env").write_text("secret")
        if user == "ordinary" and os.geteuid() == 0:
            subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(folder)], check=True)
        self.holdings = Holdings(
            read_only=(Place(self.root, f"{self.root}/.git/config"),), hidden=(Place(self.root, f"{self.root}/.env"),)
        )
        self._said, theirs = os.pipe()
        to_do, self._tell = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._tell)
            self._live(to_do, theirs)
        os.close(theirs)
        os.close(to_do)
        said = os.read(self._said, 1000).decode()
        assert said == "ready", said
        kinds = ["mnt"] if user == "root" else ["user", "mnt"]
        self.namespaces = [os.open(f"/proc/{self._pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]

    def _live(self, to_do: int, said: int) -> NoReturn:
        try:
            signal.alarm(60)
            own_mounts(self.user)
            self._hold()
            os.write(said, b"ready")
            while order := os.read(to_do, 1000):
                os.write(said, self._obey(order.decode()))
        except BaseException:  # whatever it is, it must not run on in the test's frames
            os.write(said, traceback.format_exc().encode()[-1000:])
        finally:
            os._exit(0)

    def _hold(self) -> None:
        mount(self.root, self.root, None, MS_BIND | MS_REC)
        mount("exeat", self.own, "tmpfs", 0, "mode=755")
        Path(f"{self.own}/pins").mkdir(0)
        Path(f"{self.own}/hidden").touch()
        self.holdings.hold(f"{self.own}/pins", f"{self.own}/hidden")
        os.chdir(self.root)

    @staticmethod
    def _obey(order: str) -> bytes:
        try:
            return repr(eval(order)).encode()
        except OSError as error:
            return os.strerror(error.errno or 0).encode()
        except Exception as error:
            return repr(error).encode()

    def tell(self, order: str) -> str:
        os.write(self._tell, order.encode())
        return os.read(self._said, 1000).decode()

    def hold_again(self) -> str:
        """By a process of the same user outside."""
        roots = {self.root: os.lstat(self.root)}

        def hold() -> None:
            why = hold_again(self.holdings, roots, self.namespaces, f"{self.own}/pins", f"{self.own}/hidden")
            if why:
                raise OSError(errno.EIO, why)

        return attempt(hold, uid=0 if self.user == "root" else UIDS[-1])

    def close(self) -> None:
        os.close(self._tell)
        os.waitpid(self._pid, 0)
        for descriptor in (self._said, *self.namespaces):
            os.close(descriptor)


@pytest.fixture(params=USERS)
def jail(request: pytest.FixtureRequest) -> Iterator[Jail]:
    require()
    with folder_of(None) as folder:
        made = Jail(folder, request.param)
        yield made
        made.close()


def replace(path: str, text: str) -> None:
    """As editors and git do it, outside."""
    new = Path(f"{path}.new")
    new.write_text(text)
    new.chmod(0o666)
    new.replace(path)


READ, WRITE = "open({!r}).read()", "open({!r}, 'w').write('x')"


def test_what_is_replaced_is_open_until_it_is_held_again(jail: Jail) -> None:
    config, secret = ".git/config", ".env"
    assert jail.tell(WRITE.format(config)) == "Read-only file system"
    assert jail.tell(READ.format(secret)) == "''"
    replace(f"{jail.root}/{config}", "second")
    replace(f"{jail.root}/{secret}", "secret again")
    assert jail.tell(WRITE.format(config)) == "1"
    assert jail.tell(READ.format(secret)) == "'secret again'"
    assert jail.hold_again() == "ok"
    assert jail.tell(WRITE.format(config)) == "Read-only file system"
    assert jail.tell(READ.format(secret)) == "''"
    assert jail.tell("__import__('os').rename('.git', 'z')") == "Device or resource busy"


def test_what_is_held_is_not_mounted_again(jail: Jail) -> None:
    count = "open('/proc/self/mountinfo').read().count('\\n')"
    before = jail.tell(count)
    assert jail.hold_again() == "ok"
    assert jail.tell(count) == before


def test_what_is_gone_is_no_error(jail: Jail) -> None:
    os.unlink(f"{jail.root}/.env")
    assert jail.hold_again() == "ok"


def test_another_folder_in_the_place_of_the_root_is_not_taken_for_it(jail: Jail) -> None:
    program = "(__import__('exeat.jail.libc').jail.libc.mount('t', {!r}, 'tmpfs'), None)[1]"
    assert jail.tell(program.format(jail.root)) == "None"
    assert jail.hold_again() == "EIO"
