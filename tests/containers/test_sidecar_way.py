"""`exeat run --container` with an engine whose containers no one here can enter: the gateway is a sidecar there."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.clients.terminal import Terminal
from tests.support.engines.base import DOCKER_ROOT, PODMAN_ROOT, Base, Way
from tests.support.engines.boxes import ADDRESSES, PORT, remove, servers, start, try_from
from tests.support.engines.forwarding import ELSEWHERE, forwarded
from tests.support.engines.session import Engines
from tests.support.gateways.scene import wait_until
from tests.support.programs import Finished
from tests.support.runs.running import Running, environment, exeat, run_argv

pytestmark = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image of the tests has Python 3.11")
ALLOWED, OTHER = ADDRESSES
_LOOK = f"""
import json, os, socket, sys, urllib.request
def ask(host):
    try:
        return urllib.request.urlopen(f"http://{{host}}:{PORT}/", timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code
def direct(host, port):
    try:
        socket.create_connection((host, port), 2).close()
        return "open"
    except OSError:
        return "no"
def name(text):
    try:
        return socket.gethostbyname(text)
    except OSError:
        return "no"
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
print(json.dumps({{
    "asked": [ask("{ALLOWED}"), ask("{OTHER}")],
    "direct": [direct("{ALLOWED}", {PORT}), direct("{OTHER}", {PORT})],
    "name": name("example.com"),
    "variables": sorted(os.environ),
    "given": sys.stdin.read(),
}}))
print("to errors", file=sys.stderr)
sys.exit(7)
"""


@dataclass(frozen=True, slots=True)
class _Far:
    """An engine as it is, and as it is seen from another machine."""

    base: Base
    seen: Base
    folder: Path

    def options(self, *more: str) -> list[str]:
        return ["--container", self.base.image, "--engine", self.base.kind, *more]

    @property
    def environ(self) -> dict[str, str]:
        return environment(
            EXEAT_HOME=str(self.folder / "state"),
            EXEAT_GATEWAY_BASE=self.base.image,
            NOT_FOR_IT="mine",
            **self.seen.variables,
        )

    def run(self, *command: str, options: tuple[str, ...] = (), given: str | None = None) -> Finished:
        return exeat(
            *self.options(*options),
            command=command,
            before=ELSEWHERE,
            env=self.environ,
            cwd=self.folder,
            given=given,
        )

    def left(self) -> list[str]:
        """What runs have made and not removed."""
        found = [str(each["Names"]) for each in self.base.containers("exeat.owner")]
        networks = self.base.ask("GET", '/networks?filters={"label":["exeat.owner"]}')
        return found + [each["Name"] for each in networks]


@pytest.fixture(scope="module", params=(DOCKER_ROOT, PODMAN_ROOT), ids=lambda way: way.name)
def far(engines: Engines, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Far]:
    way: Way = request.param
    base = engines.get(way, own="far")  # other tests have servers at the same addresses, and things of their own
    with servers(base), forwarded(base) as seen:
        yield _Far(base, seen, tmp_path_factory.mktemp("far"))


@pytest.mark.threat("T-S4", "T-E1")
def test_the_command_reaches_what_is_allowed_through_the_sidecar_and_nothing_else(far: _Far) -> None:
    record = far.folder / "record.log"
    options = ("--allow", f"{ALLOWED}:{PORT}", "--audit", str(record))
    done = far.run("python3", "-I", "-c", _LOOK, options=options, given="x" * 300_000)
    assert done.status == 7, done
    said = json.loads(done.stdout)
    assert said["asked"] == [200, 403]
    assert said["direct"] == ["no", "no"]
    assert said["name"] == "no"
    assert "HTTP_PROXY" in said["variables"]
    assert "NOT_FOR_IT" not in said["variables"]
    assert said["given"] == "x" * 300_000
    assert "to errors\n" in done.stderr
    assert "the engine runs on another machine" in done.stderr
    assert "relies on proxy variables" in done.stderr
    assert f"--allow {OTHER}:{PORT}" in done.stderr
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    decisions = [(each["host"], each["verdict"]) for each in lines if each["event"] == "decision"]
    assert decisions == [(ALLOWED, "allow"), (OTHER, "deny")]
    assert [each["seq"] for each in lines] == list(range(1, len(lines) + 1))
    verified = exeat(argv=[sys.executable, "-m", "exeat", "audit", "verify", str(record)])
    assert verified.status == 0, verified
    assert far.left() == []
    # The control: on a usual network the same connections can be made.
    usual = start(far.base, "way-usual", far.base.image, {}, Cmd=["sleep", "1000"])
    try:
        assert try_from(far.base, usual, ("direct", ALLOWED, PORT), ("direct", OTHER, PORT)) == ["open", "open"]
    finally:
        remove(far.base, f"/containers/{usual}?force=1&v=1")


@pytest.mark.threat("T-E9")
def test_signals_reach_the_command_and_nothing_is_left(far: _Far) -> None:
    def running(*command: str) -> Running:
        return Running(far.folder, *far.options(), command=command, before=ELSEWHERE, env=far.environ, cwd=far.folder)

    with running("sh", "-c", "trap 'echo heard; exit 5' TERM; echo runs; while :; do sleep 0.1; done") as run:
        run.wait_for("runs")
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 5, run.errors
        assert "heard" in run.out
    assert far.left() == []
    with running("sh", "-c", "echo runs; exec sleep 1000") as run:
        run.wait_for("runs")
        run.process.send_signal(signal.SIGKILL)
        run.wait()
    # The command has no network any more; what else is left the next run removes.
    wait_until(lambda: _sidecars(far) == [], "the gateway ends with the run")
    assert far.left() != []
    assert far.run("true").status == 0
    wait_until(lambda: not far.left(), "what the killed run has left is removed")


def _skip_but_once(far: _Far) -> None:
    if far.base.kind != "docker":
        pytest.skip("the same with every engine")


def _sidecars(far: _Far) -> list[str]:
    """Those that run."""
    return [each["Id"] for each in far.base.containers("exeat.kind=sidecar") if each["State"] == "running"]


def test_a_terminal_has_keys_and_a_size(far: _Far) -> None:
    _skip_but_once(far)
    # The engine tells a terminal its size when the command has started already.
    until = 'until [ "$(stty size)" = "%s" ]; do sleep 0.05; done; echo "is %s"'
    script = f"{until % (2 * ('24 80',))}; read word; echo got $word; {until % (2 * ('30 90',))}; exec sleep 1000"
    with Terminal(far.environ | {"TERM": "dumb"}, cwd=str(far.folder)) as terminal:
        job = terminal.start([*ELSEWHERE, *run_argv(far.options(), ["sh", "-c", script])])
        terminal.wait_for("is 24 80")
        terminal.resize(30, 90)
        os.kill(job, signal.SIGWINCH)
        terminal.type("this\r")
        terminal.wait_for("got this")
        terminal.wait_for("is 30 90")
        terminal.type("\x03")
        assert terminal.wait(job) == ("exited", 130)
    assert far.left() == []


@pytest.mark.threat("T-E9")
def test_interrupted_while_things_are_made_nothing_is_left(far: _Far) -> None:
    _skip_but_once(far)
    with Running(
        far.folder, *far.options(), command=["true"], before=ELSEWHERE, env=far.environ, cwd=far.folder
    ) as run:
        wait_until(lambda: far.left() != [], "something is made")
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 130, run.errors
    assert far.left() == []


def test_what_a_sidecar_cannot_do_is_refused_before_anything_is_made(far: _Far) -> None:
    _skip_but_once(far)
    secrets = far.folder / "secrets.toml"
    secrets.write_text('[TOKEN]\nvalue = "v"\nhosts = ["api.test"]\n')
    secrets.chmod(0o600)
    for options, sentence in (
        (("--ask",), "cannot ask anyone here"),
        (("--learn",), "cannot ask anyone here"),
        (("--name", "far", "--new"), "a named sandbox changes its rules"),
        (("--secrets", str(secrets)), "no value is sent to another machine"),
        (("--mount", "/usr:/data"), "files of this machine"),
        (("--no-proxy-env",), "nothing finds the sidecar"),
        (("--allow", "127.0.0.1:80"), "cannot be reached from the engine's"),
        (("--allow", "api.test paths=/v1/**"), "methods and paths: the sidecar does not look into TLS"),
    ):
        done = far.run("true", options=options)
        assert done.status == 2, done
        assert sentence in done.stderr
    assert far.left() == []
