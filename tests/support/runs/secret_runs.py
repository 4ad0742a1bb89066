"""Runs with secrets: one from each kind of source, a server over TLS to send them to, and commands that use them."""

from __future__ import annotations

import functools
import json
import os
import secrets
import socket
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import trustme

from tests.support.origins.plain import Handler, Origin
from tests.support.runs.leak_scan import Needles
from tests.support.runs.running import Running, environment, folder_of, python

HOST = "api.test"
SOURCES = ("json", "toml", "policy", "variable", "env", "file", "command")

# Sends all secrets that it is told of to each URL, tells what came back, and waits, with a child, for the end of its
# input.
USE = """
import http.client, os, signal, sys, urllib.error, urllib.request
signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of its own
names, *urls = sys.argv[1:]
for url in urls:
    request = urllib.request.Request(url, headers={name: "Bearer " + os.environ[name] for name in names.split(",")})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            print(url, answer.status, answer.reason, answer.headers, answer.read().decode(), flush=True)
    except urllib.error.HTTPError as error:
        print(url, error.code, error.reason, error.headers, error.read().decode(), flush=True)
    except (OSError, http.client.HTTPException) as error:
        print(url, type(error).__name__, error, flush=True)
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


class Hoard:
    """Secrets in a folder, one from each source, named after it; the options and variables that bring them in."""

    def __init__(
        self,
        folder: Path,
        port: int,
        sources: Sequence[str] = SOURCES,
        uid: int | None = None,
        *,
        filler: str = "",
        **settings: object,
    ) -> None:
        """`filler` makes the values longer; `settings` are said of every secret."""
        self.token = secrets.token_hex(12)
        self.names = tuple(f"{source.upper()}_KEY" for source in sources)
        self.values = {name: f"live-{filler}{number:04}{self.token}" for number, name in enumerate(self.names)}
        self.needles = Needles(self.token, self.values)
        self._settings = settings
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
        return {name: {"hosts": self._hosts, **self._settings, **source}}

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

    def use(self, *ports: int, urls: Sequence[str] = ()) -> list[str]:
        """A command that sends them all, to the host at these ports and elsewhere, and waits for its input's end."""
        return python(USE, ",".join(self.names), *(f"https://{HOST}:{port}/" for port in ports), *urls)


@contextmanager
def workshop(uid: int | None) -> Iterator[Path]:
    """A folder of this user's with `work`, `home` and `tmp` in it, which are a run's own places."""
    with folder_of(uid) as folder:
        for name in ("work", "home", "tmp"):
            (folder / name).mkdir()
            if uid is not None:
                os.chown(folder / name, uid, uid)
        yield folder


class SecretRun(Running):
    """`exeat run` with all secrets of a hoard, in a workshop, its input open: it lasts until `finish`."""

    def __init__(
        self,
        folder: Path,
        hoard: Hoard,
        *options: str,
        command: Sequence[str],
        uid: int | None = None,
        before: Sequence[str] = (),
    ) -> None:
        self.audit = folder / "work" / "audit.jsonl"
        super().__init__(
            folder,
            "--audit",
            str(self.audit),
            *hoard.options,
            *options,
            command=command,
            uid=uid,
            before=before,
            env=places(folder) | hoard.variables,
            cwd=folder / "work",
            stdin=subprocess.PIPE,
        )

    def finish(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        super().__exit__(kind, error, trace)


def places(folder: Path) -> dict[str, str]:
    """The environment of a run in a workshop."""
    return environment(HOME=str(folder / "home"), TMPDIR=str(folder / "tmp"))
