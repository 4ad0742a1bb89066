"""The proxies that are compared: one class each, with the fairest minimal configuration we know of.

The rules for all of them: loopback only, one worker where workers can be counted, no cache, keep-alive on,
requests logged to a file where the proxy does that by default (exeat audits each request too), and CONNECT as
a blind tunnel. For what looks into TLS: interceptors.py.
"""

import importlib.metadata
import os
import pwd
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from bench.install import need_npm_package, need_program, need_python_package
from bench.origin import PLAIN_PORT, TLS_PORT
from bench.process import HERE, ROOT, WORK, BenchError, free_port, output_of, running

MEMORY = Path("/dev/shm")
ORIGINS = (f"127.0.0.1:{PLAIN_PORT}", f"127.0.0.1:{TLS_PORT}")


class Peer(Protocol):
    name: str
    logs_to_memory: bool

    def prepare(self) -> str:
        """Install what is needed and return the version; BenchError says why the peer is left out."""

    def command(self, port: int, home: Path, *, tunnels: bool) -> tuple[Sequence[str], dict[str, str]]:
        """Arguments and extra environment to start it with. *tunnels* tells which rows it will serve."""


def _hand_over(home: Path, user: str) -> str | None:
    """Give *home* to the unprivileged user that a proxy started by root insists on; None if we are not root."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(user)
    os.chown(home, entry.pw_uid, entry.pw_gid)
    return user


class Exeat:
    name = "exeat"
    logs_to_memory = False

    def __init__(self, program: str | None = None, policy: Path | None = None) -> None:
        self.argv = shlex.split(program) if program else [str(ROOT / ".venv" / "bin" / "exeat"), "serve"]
        self.policy = policy

    def prepare(self) -> str:
        if shutil.which(self.argv[0]) is None:
            raise BenchError(f"{Path(self.argv[0]).name} is not installed in .venv")
        return importlib.metadata.version("exeat")

    def command(self, port: int, home: Path, *, tunnels: bool) -> tuple[Sequence[str], dict[str, str]]:
        env = {"PROXY_PORT": str(port), "EXEAT_BIND": "127.0.0.1", "EXEAT_AUDIT": str(home / "audit.jsonl")}
        if self.policy:
            env["EXEAT_POLICY"] = str(self.policy)
        else:
            env["PROXY_ALLOWLIST"] = ",".join(ORIGINS)
        return self.argv, env


class Squid:
    name = "squid"
    logs_to_memory = False
    config = """
http_port 127.0.0.1:{port}
acl self src 127.0.0.0/8
http_access allow self
http_access deny all
cache deny all
access_log daemon:{home}/access.log squid
cache_log {home}/cache.log
pid_filename {home}/squid.pid
coredump_dir {home}
shutdown_lifetime 0 seconds
pinger_enable off
max_filedescriptors 16384
{user}
"""

    def prepare(self) -> str:
        return output_of(need_program("squid", "squid"), "-v").split("Version ")[-1].split()[0]

    def command(self, port: int, home: Path, *, tunnels: bool) -> tuple[Sequence[str], dict[str, str]]:
        user = _hand_over(home, "proxy")
        line = f"cache_effective_user {user}" if user else ""
        path = home / "squid.conf"
        path.write_text(self.config.format(port=port, home=home, user=line))
        return [need_program("squid", "squid"), "-N", "-f", str(path)], {}


class Tinyproxy:
    name = "tinyproxy"
    logs_to_memory = True  # it syncs each line, which on a disk costs several times its other work
    config = """
Port {port}
Listen 127.0.0.1
Timeout 600
MaxClients 4096
Allow 127.0.0.0/8
LogFile "{home}/access.log"
LogLevel Info
PidFile "{home}/tinyproxy.pid"
{user}
"""

    def prepare(self) -> str:
        return output_of(need_program("tinyproxy", "tinyproxy"), "-v").split()[-1]

    def command(self, port: int, home: Path, *, tunnels: bool) -> tuple[Sequence[str], dict[str, str]]:
        user = _hand_over(home, "nobody")
        path = home / "tinyproxy.conf"
        path.write_text(self.config.format(port=port, home=home, user=f"User {user}" if user else ""))
        return [need_program("tinyproxy", "tinyproxy"), "-d", "-c", str(path)], {}


class Mitmproxy:
    name = "mitmproxy"
    logs_to_memory = False

    def prepare(self) -> str:
        program = need_python_package("mitmproxy", "mitmdump")
        return output_of(str(program), "--version").splitlines()[0].split()[-1]

    def command(self, port: int, home: Path, *, tunnels: bool) -> tuple[Sequence[str], dict[str, str]]:
        program = need_python_package("mitmproxy", "mitmdump")
        argv = [str(program), "-q", "--listen-host", "127.0.0.1", "--listen-port", str(port)]
        argv += ["--set", f"confdir={home}"]
        # Only where it is a tunnel: under this option plain requests would be relayed as raw bytes too.
        return [*argv, *(("--ignore-hosts", ".*") if tunnels else ())], {}


class ProxyPy:
    name = "proxy.py"
    logs_to_memory = False

    def prepare(self) -> str:
        return output_of(str(need_python_package("proxy.py", "proxy")), "--version").split()[-1]

    def command(self, port: int, home: Path, *, tunnels: bool) -> tuple[Sequence[str], dict[str, str]]:
        program = need_python_package("proxy.py", "proxy")
        argv = [str(program), "--hostname", "127.0.0.1", "--port", str(port), "--threadless"]
        argv += ["--num-workers", "1", "--num-acceptors", "1", "--log-file", str(home / "access.log")]
        return argv, {"HOME": str(home)}


class SandboxRuntime:
    name = "sandbox-runtime"
    logs_to_memory = False
    package = "@anthropic-ai/sandbox-runtime"

    def prepare(self) -> str:
        node = need_program("node", "nodejs")
        manifest = need_npm_package(self.package) / "package.json"
        read = "console.log(JSON.parse(require('fs').readFileSync(process.argv[1])).version)"
        return f"{output_of(node, '-e', read, str(manifest))} on Node {output_of(node, '--version')}"

    def command(self, port: int, home: Path, *, tunnels: bool) -> tuple[Sequence[str], dict[str, str]]:
        node = need_program("node", "nodejs")
        script = str(HERE / "srt_proxy.mjs")
        return [node, script, str(need_npm_package(self.package)), str(port), *ORIGINS], {}


def all_peers(exeat_program: str | None) -> list[Peer]:
    return [Exeat(exeat_program), Squid(), Tinyproxy(), Mitmproxy(), ProxyPy(), SandboxRuntime()]


@contextmanager
def open_peer(peer: Peer, *, tunnels: bool) -> Iterator[tuple[int, int]]:
    """Run *peer* in a fresh directory for the length of the block; yields its port and its pid."""
    where = MEMORY if peer.logs_to_memory and MEMORY.is_dir() else WORK
    with TemporaryDirectory(prefix="run-", dir=where) as name:
        port = free_port()
        argv, env = peer.command(port, Path(name), tunnels=tunnels)
        with running(argv, port, WORK / f"{peer.name}.log", env) as pid:
            yield port, pid
