"""Runs with secrets: one from each kind of source, a server over TLS to send them to, and commands that use them."""

from __future__ import annotations

import functools
import json
import os
import secrets
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trustme

from tests.support.leak_scan import Needles
from tests.support.origin import Handler, Origin
from tests.support.running import folder_of, python

HOST = "api.test"
SOURCES = ("json", "toml", "policy", "variable", "env", "file", "command")

# Sends each secret it is told of to a URL, tells what came back, and waits, with a child, for the end of its input.
USE = """
import os, sys, urllib.error, urllib.request
url, *names = sys.argv[1:]
for name in names:
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + os.environ[name]})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            print(name, answer.status, answer.read().decode(), flush=True)
    except urllib.error.HTTPError as error:
        print(name, error.code, error.read().decode(), flush=True)
    except OSError as error:
        print(name, type(error).__name__, error, flush=True)
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("ready", flush=True)
sys.stdin.read()
"""


@functools.cache
def authority() -> trustme.CA:
    """Of the servers that secrets go to."""
    return trustme.CA()


def tls_echo(host: str = HOST) -> Handler:
    """Answers every request with the head of it, over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(host).configure_cert(context)

    def handle(conn: socket.socket, origin: Origin) -> None:
        with context.wrap_socket(conn, server_side=True) as channel:
            buffer = bytearray()
            while (head := origin.read_head(channel, buffer)) is not None:
                channel.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(head), head))

    return handle


def marker() -> str:
    """A value that is nowhere by chance."""
    return f"live-{secrets.token_hex(24)}"


class Hoard:
    """Secrets in a folder, one from each source, named after it; the options and variables that bring them in."""

    def __init__(self, folder: Path, port: int, sources: Sequence[str] = SOURCES, uid: int | None = None) -> None:
        self.values = {source.upper() + "_KEY": marker() for source in sources}
        self.names = tuple(self.values)
        self.needles = Needles(self.values)
        self.variables: dict[str, str] = {}
        self.files: list[Path] = []  # that hold a value, as they should
        self._folder = folder / "hoard"
        self._folder.mkdir()
        self._hosts = [f"{HOST}:{port}"]
        ca = folder / "ca.pem"
        authority().cert_pem.write_to_path(ca)
        ca.chmod(0o644)
        options = ["--upstream-ca", str(ca), "--add-host", f"{HOST}:127.0.0.1"]
        for source in sources:
            options += getattr(self, f"_{source}")(f"{source.upper()}_KEY")
        self.options = tuple(options)
        for path in (self._folder, *self._folder.iterdir()):
            path.chmod(0o700 if path.is_dir() else 0o600)
            if uid is not None:
                os.chown(path, uid, uid)

    def _write(self, name: str, text: str) -> str:
        path = self._folder / name
        path.write_text(text)
        self.files.append(path)
        return str(path)

    def _spec(self, name: str, **source: object) -> dict[str, object]:
        return {name: {**source, "hosts": self._hosts}}

    def _json(self, name: str) -> list[str]:
        return ["--secrets", self._write("s.json", json.dumps(self._spec(name, value=self.values[name])))]

    def _toml(self, name: str) -> list[str]:
        text = f'[{name}]\nvalue = "{self.values[name]}"\nhosts = {self._hosts}\n'
        return ["--secrets", self._write("s.toml", text)]

    def _policy(self, name: str) -> list[str]:
        text = f'allow = ["other.test"]\n[secrets.{name}]\nvalue = "{self.values[name]}"\nhosts = {self._hosts}\n'
        return ["--policy", self._write("p.toml", text)]

    def _variable(self, name: str) -> list[str]:
        self.variables["EXEAT_SECRETS_JSON"] = json.dumps(self._spec(name, value=self.values[name]))
        return []

    def _env(self, name: str) -> list[str]:
        """By another name than its own."""
        self.variables["HELD_IN_ANOTHER"] = self.values[name]
        return ["--secrets", self._write("env.json", json.dumps(self._spec(name, env="HELD_IN_ANOTHER")))]

    def _file(self, name: str) -> list[str]:
        held = self._write("held", f"{self.values[name]}\n")
        return ["--secrets", self._write("file.json", json.dumps(self._spec(name, file=held)))]

    def _command(self, name: str) -> list[str]:
        command = ["cat", self._write("printed", f"{self.values[name]}\n")]
        return ["--secrets", self._write("command.json", json.dumps(self._spec(name, command=command)))]

    def use(self, port: int, names: Sequence[str] | None = None) -> list[str]:
        """A command that sends them all and waits for the end of its input."""
        return python(USE, f"https://{HOST}:{port}/", *(self.names if names is None else names))


@contextmanager
def workshop(uid: int | None) -> Iterator[Path]:
    """A folder of this user's with `work`, `home` and `tmp` in it, which are a run's own places."""
    with folder_of(uid) as folder:
        for name in ("work", "home", "tmp"):
            (folder / name).mkdir()
            if uid is not None:
                os.chown(folder / name, uid, uid)
        yield folder
