"""The programs: how each is called, what of its surroundings it heeds, and how its answer is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.secrets.servers import DOMAIN, PROGRAMS, REPOSITORY, VALUE
from tests.support.origins.git import FIRST_FILE, git_environment
from tests.support.origins.packages import install, pip_environment
from tests.support.programs import Finished

USER = "somebody"
JAVA = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"]


@dataclass(frozen=True, slots=True)
class Site:
    """What a program is told: where its server is, and a folder of its own."""

    host: str
    ports: tuple[int, int, int]  # of the web, gRPC and WebSocket servers
    folder: Path
    python: str
    built: Mapping[str, Path] = field(default_factory=dict)  # what had to be compiled

    @property
    def place(self) -> str:
        return f"{self.host}:{self.ports[0]}"

    @property
    def url(self) -> str:
        return f"https://{self.place}/echo"


@dataclass(frozen=True, slots=True)
class Program:
    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)


def _by_header(done: Finished, key: str, _: Path) -> None:
    """The server's JSON, with the header in it as the program sent it."""
    assert json.loads(done.stdout)["authorization"] == f"Bearer {key}", done


@dataclass(frozen=True, slots=True)
class Client:
    """A program. It goes by proxy variables or not; it trusts files by variables, or where they have always been."""

    name: str
    command: Callable[[Site], Program]
    needs: tuple[str, ...]
    reads_proxy: bool = True
    by_variables: bool = True
    by_mounts: bool = True
    probe: tuple[str, ...] = ()  # a command that fails where a part of it is not installed
    module: str = ""  # of the Python environment of the tests, which only who runs them can use
    shows: str = VALUE  # what the server is to see
    confirm: Callable[[Finished, str, Path], None] = _by_header

    def __str__(self) -> str:
        return self.name


def _sends(*command: str) -> Callable[[Site], Program]:
    """A program of ours that gets the URL; the first of these words that is a file of ours is that file."""

    def build(site: Site) -> Program:
        words = [str(PROGRAMS / word) if (PROGRAMS / word).is_file() else word for word in command]
        return Program([*words, site.url])

    return build


def _python(file: str) -> Callable[[Site], Program]:
    return lambda site: Program([site.python, str(PROGRAMS / file), site.url])


def _pip(site: Site) -> Program:
    *command, package = install(f"https://{USER}:$API_KEY@{site.place}", site.folder / "installed")
    env = pip_environment({}, site.folder)
    del env["PIP_CERT"]  # whom to trust is not this test's to say
    return Program([*command, f"{package}==1.0"], env)


def _pip_ended(done: Finished, key: str, folder: Path) -> None:
    assert (folder / "installed" / "tiny.py").exists(), done
    assert f"you are {USER}:{key}" in done.stderr, done


def _npm(site: Site) -> Program:
    (site.folder / "package.json").write_text("{}")
    lines = f"registry=https://{site.place}/npm/\n//{site.place}/npm/:_authToken=${{API_KEY}}\n"
    (site.folder / ".npmrc").write_text(lines)
    quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=0"]
    return Program(["npm", "install", *quiet, "--cache", str(site.folder / "cache"), "tiny"])


def _npm_ended(done: Finished, key: str, folder: Path) -> None:
    assert (folder / "node_modules" / "tiny" / "package.json").exists(), done
    assert f"you are {key}" in done.stderr, done


def _git(site: Site, url: str, *options: str) -> Program:
    """It writes every header down, so that what the server said back can be looked at."""
    tracing = {"GIT_TRACE_CURL": "1", "GIT_TRACE_CURL_NO_DATA": "1", "GIT_TRACE_REDACT": "0"}
    command = ["git", *options, "clone", "--quiet", url, str(site.folder / "clone")]
    return Program(command, git_environment(tracing))


def _git_with_header(site: Site) -> Program:
    header = ["-c", "http.extraHeader=Authorization: Bearer $API_KEY"]
    return _git(site, f"https://{site.place}/{REPOSITORY}", *header)


def _git_with_password(site: Site) -> Program:
    return _git(site, f"https://{USER}:$API_KEY@{site.place}/{REPOSITORY}")


def _git_ended(done: Finished, key: str, folder: Path) -> None:
    assert (folder / "clone" / "README").read_text() == FIRST_FILE, done
    received = [line for line in done.stderr.splitlines() if "<= Recv header" in line]
    echoes = [line for line in received if " x-echo: " in line.lower()]
    assert echoes, done
    assert all(line.endswith(key) for line in echoes), echoes


def _grpc_ended(done: Finished, key: str, _: Path) -> None:
    shown = f"Bearer {key}"
    assert json.loads(done.stdout) == {
        "one": f"one {shown}",
        "many": [f"{number} many {shown}" for number in range(3)],
        "both": [f"first {shown}", f"second {shown}"],
        "trailer": shown,
    }, done


def _websocket_ended(done: Finished, key: str, _: Path) -> None:
    assert json.loads(done.stdout) == {"echo": f"Bearer {key}", "said": "hello"}, done


_CURL = ["curl", "--disable", "--silent", "--show-error", "--fail-with-body", "--max-time", "20"]
_WGET = ["wget", "--no-config", "--quiet", "--tries=1", "--timeout=20", "--output-document=-"]
_KEY_HEADER = "Authorization: Bearer $API_KEY"

# The slow ones first: they run along with the others.
CLIENTS = (
    Client(
        "java",
        lambda site: Program([*JAVA, "-cp", str(site.built["java"]), "Send", site.url]),
        ("java", "javac"),
        reads_proxy=False,
    ),
    Client("pip", _pip, (), module="pip", shows=f"{USER}:{VALUE}", confirm=_pip_ended),
    Client("npm", _npm, ("node", "npm"), by_mounts=False, confirm=_npm_ended),
    Client(
        "grpc",
        lambda site: Program([site.python, str(PROGRAMS / "call_grpc.py"), f"{site.host}:{site.ports[1]}"]),
        (),
        module="grpc",
        confirm=_grpc_ended,
    ),
    Client(
        "websockets",
        lambda site: Program([site.python, str(PROGRAMS / "talk_websocket.py"), f"wss://{site.host}:{site.ports[2]}/"]),
        (),
        module="websockets",
        confirm=_websocket_ended,
    ),
    Client("aiohttp", _python("send_aiohttp.py"), (), module="aiohttp"),
    Client("httpx", _python("send_httpx.py"), (), module="httpx"),
    Client("requests", _python("send_requests.py"), (), module="requests"),
    Client("urllib", _python("send_urllib.py"), ()),
    Client("curl", lambda site: Program([*_CURL, "--header", _KEY_HEADER, site.url]), ("curl",)),
    # Debian's is built with GnuTLS, which reads no variable.
    Client(
        "wget",
        lambda site: Program([*_WGET, f"--header={_KEY_HEADER}", site.url]),
        ("wget",),
        by_variables=False,
    ),
    Client("node-fetch", _sends("node", "send_fetch.mjs"), ("node",), reads_proxy=False, by_mounts=False),
    Client("node-https", _sends("node", "send_https.mjs"), ("node",), reads_proxy=False, by_mounts=False),
    Client("go", lambda site: Program([str(site.built["go"]), site.url]), ("go",)),
    Client("ruby", _sends("ruby", "send.rb"), ("ruby",)),
    Client("perl-lwp", _sends("perl", "send.pl"), ("perl",), probe=("perl", "-MLWP::Protocol::https", "-e", "1")),
    # libcurl reads no variable that says whom to trust; those are curl's own.
    Client(
        "php-curl",
        _sends("php", "send.php"),
        ("php",),
        by_variables=False,
        probe=("php", "-r", 'exit(extension_loaded("curl") ? 0 : 1);'),
    ),
    Client("git-header", _git_with_header, ("git",), confirm=_git_ended),
    Client("git-password", _git_with_password, ("git",), shows=f"{USER}:{VALUE}", confirm=_git_ended),
)
HOSTS = (DOMAIN, *(f"{client.name}.{DOMAIN}" for client in CLIENTS))
