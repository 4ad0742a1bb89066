"""OpenSSH's own server on loopback: one `sshd -i` for each connection, with keys of its own and no rights."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import threading
from pathlib import Path

from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import Origin
from tests.support.programs import find, need, run
from tests.support.runs.running import NOBODY, as_user

# Root runs it as nobody, called `git` and with a shell, both of which are so in its mount namespace only.
_AS_GIT = 'mount --bind "$0" /etc/passwd && exec "$@"'


class Sshd:
    """A started server. `connections` counts who came; only `user` can log in, with the key `identity`."""

    def __init__(self, folder: Path) -> None:
        need("ssh", "ssh-keygen")
        sshd = find("sshd", "/usr/sbin", "/sbin")
        self.uid = NOBODY if os.geteuid() == 0 else None
        self.user = "git" if self.uid is not None else pwd.getpwuid(os.getuid()).pw_name
        self.identity = folder / "identity"
        self._log = folder / "sshd.log"
        host_key, allowed, config = folder / "host_key", folder / "authorized_keys", folder / "sshd_config"
        for key in (self.identity, host_key):
            done = run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], os.environ)
            assert done.status == 0, done
        shutil.copy(self.identity.with_suffix(".pub"), allowed)
        self.host_key = host_key.with_suffix(".pub").read_text().strip()
        config.write_text(
            f"HostKey {host_key}\nAuthorizedKeysFile {allowed}\nAllowUsers {self.user}\nUsePAM no\nPidFile none\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "StrictModes no\n"  # everybody may write to /tmp, and it is on the way to the keys
        )
        self._log.touch()
        self._command = [*as_user(self.uid), sshd, "-i", "-f", str(config), "-E", str(self._log)]
        if self.uid is not None:
            need("unshare", "mount")
            passwd = folder / "passwd"
            passwd.write_text(f"root:x:0:0::/root:/bin/sh\n{self.user}:x:{self.uid}:{self.uid}::{folder}:/bin/sh\n")
            self._command = ["unshare", "--mount", "sh", "-c", _AS_GIT, str(passwd), *self._command]
            for path in (host_key, self._log):
                os.chown(path, self.uid, self.uid)
        self._lock = threading.Lock()
        self._running = 0
        self._origin = Origin(self._serve)
        self.port = self._origin.port

    @property
    def connections(self) -> int:
        return self._origin.connections

    @property
    def log(self) -> str:
        return self._log.read_text()

    def _serve(self, conn: socket.socket, origin: Origin) -> None:
        with self._lock:
            self._running += 1
        try:
            subprocess.run(
                self._command,
                stdin=conn.fileno(),
                stdout=conn.fileno(),
                stderr=subprocess.DEVNULL,
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
                timeout=50,
                check=False,
            )
        finally:
            with self._lock:
                self._running -= 1

    def close(self) -> None:
        wait_until(lambda: self._running == 0, "every sshd to end: its client is gone")
        self._origin.close()
