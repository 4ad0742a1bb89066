"""`exeat run --vm`: it is `exeat run`, under a kernel of its own. A boot takes seconds, so each test is of much."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients.terminal import Terminal
from tests.support.fixtures.gateways import StartOrigin
from tests.support.fixtures.programs import StartWeb
from tests.support.fixtures.vms import Guest
from tests.support.gateways.scene import wait_until
from tests.support.jails.stage import Stage
from tests.support.origins.web import hello
from tests.support.programs import need
from tests.support.runs.running import exeat, hosts, python, wait_gone
from tests.support.runs.secret_runs import HOST, Hoard, tls_echo
from tests.support.vms.workplace import Workplace, has_started, processes_of, workplace

_QUIET_S = 0.7  # after a question, before a key can be an answer


@pytest.fixture(scope="module")
def place(stage: Stage, guest: Guest) -> Iterator[Workplace]:
    """Of someone without rights."""
    with workplace(stage, guest, "user") as made:
        yield made


# Asks for each URL as a program that knows no proxy, and then as one that does. Sends a placeholder by Python and by
# curl, which trust what the system and the variables name. Looks around, and leaves files.
_DO = """
import json, os, platform, subprocess, sys, urllib.error, urllib.request
secret_url, *urls = sys.argv[1:]
def ask(opener, url):
    try:
        with opener.open(url, timeout=30) as answer:
            return f"{answer.status} {answer.read().decode().strip()}"
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError as error:
        return "refused"
by_proxy = {"http": os.environ["http_proxy"]}
openers = [urllib.request.build_opener(urllib.request.ProxyHandler(proxies)) for proxies in ({}, by_proxy)]
said = {"asked": [ask(opener, url) for opener in openers for url in urls]}
key = os.environ["JSON_KEY"]
request = urllib.request.Request(secret_url, headers={"Authorization": f"Bearer {key}"})
said["key"] = key
said["python"] = urllib.request.urlopen(request, timeout=30).read().decode().count(key)
curl = ["curl", "-sSf", "-H", f"Authorization: Bearer {key}", secret_url]
said["curl"] = subprocess.run(curl, capture_output=True, text=True).stdout.count(key)
bare = ["env", "-i", "/usr/bin/curl", "-sSf", "-o", "/dev/null", secret_url]
said["without variables"] = subprocess.run(bare, capture_output=True).returncode
home = os.environ["HOME"]
said["ids"] = [os.getuid(), os.geteuid(), os.getgid()]
said["kernel"], said["cwd"], said["mask"] = platform.release(), os.getcwd(), os.umask(0o22)
said["key file"] = os.path.exists(f"{home}/.ssh/id_ed25519")
said["note"] = open(f"{home}/note").read()
open(f"{home}/thrown-away", "w").write("x")
os.mkdir("made")
for name in (b"plain", b"odd \\xff\\x01\\n name", b"x" * 255):
    with open(b"made/" + name, "wb") as file:
        file.write(name)
os.symlink("plain", "made/link")
os.rename("made/plain", "made/renamed")
os.chmod("made/renamed", 0o640)
try:
    open(".git/hooks/pre-commit", "a").write("x")
    said["hook"] = "written"
except OSError as error:
    said["hook"] = type(error).__name__
said["variables"] = [os.environ.get("GIVEN"), any("live-" in value for value in os.environ.values())]
print(json.dumps(said))
sys.exit(7)
"""


def test_rules_secrets_files_and_variables_are_those_of_a_run(
    stage: Stage, guest: Guest, start_web: StartWeb, start_origin: StartOrigin
) -> None:
    with workplace(stage, guest, "root" if os.geteuid() == 0 else "user") as place:
        _check_run(place, start_web, start_origin)


def _check_run(place: Workplace, start_web: StartWeb, start_origin: StartOrigin) -> None:
    need("curl", "git")
    web, other, origin = start_web(hello, "http"), start_web(hello, "http"), start_origin(tls_echo())
    good, bad = "good.mine.test", "bad.mine.test"
    named = [(good, web.port), (bad, web.port), (good, other.port), ("other.example", web.port)]
    hoard = Hoard(place.home, origin.port, ["json"], place.uid)
    place.write(".ssh/id_ed25519", "a key")
    place.write("note", "seen")
    subprocess.run(["git", "init", "-q", place.project], check=True)
    subprocess.run(["chown", "-R", f"{place.uid}:{place.uid}", place.project], check=True)
    log = place.home / "audit.jsonl"
    rules = ["--allow", f"*.mine.test:{web.port}", "--deny", f"bad.mine.test:{web.port}", *hosts(good, bad)]
    urls = [f"http://{host}:{port}/" for host, port in named]
    done = place.run(
        *(*rules, *hoard.options, "--audit", str(log), "--env", "GIVEN=given"),
        command=python(_DO, f"https://{HOST}:{origin.port}/", *urls),
    )
    assert done.status == 7, done
    said = json.loads(done.stdout)
    # DNS does not know what is denied. The other port leads to the gateway, which says no; so it does to proxy users.
    hello_there = "200 hello from the server"
    assert said["asked"] == [hello_there, "refused", "403", "refused", hello_there, "403", "403", "403"]
    assert (len(web.requests), other.requests) == (2, [])
    _check_secrets(said, hoard, [*origin.heads])
    assert hoard.token not in done.stdout + done.stderr
    assert said["ids"] == [place.uid] * 3
    assert said["kernel"] == place.guest.kernel.name.removeprefix("vmlinuz-")
    assert (said["cwd"], said["mask"]) == (str(place.project), 0o22)
    assert (said["key file"], said["note"], said["hook"]) == (False, "seen", "OSError")
    assert said["variables"] == ["given", False]
    _check_files(place)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert (lines[0]["event"], lines[0]["jail"], lines[-1]["event"]) == ("start", "vm", "stop")
    verdicts = {(line["verdict"], line["host"], line["port"]) for line in lines if "verdict" in line}
    assert {("allow", good, web.port), ("deny", bad, web.port), ("deny", "other.example", web.port)} <= verdicts
    assert "other.example" in done.stderr  # the summary


def _check_secrets(said: dict[str, object], hoard: Hoard, heads: list[bytes]) -> None:
    """The server got the value, twice; the guest had a placeholder. The system's list of roots has exeat's."""
    assert (said["python"], said["curl"], said["without variables"]) == (1, 1, 0)
    value = hoard.values["JSON_KEY"]
    assert said["key"] != value
    assert [head.count(value.encode()) for head in heads] == [1, 1, 0]


def _check_files(place: Workplace) -> None:
    """Of the project they are real, and the caller's; of the home they are gone."""
    made = place.project / "made"
    names = {b"renamed", b"link", b"odd \xff\x01\n name", b"x" * 255}
    assert {os.fsencode(path.name) for path in made.iterdir()} == names
    assert {os.lstat(bytes(made) + b"/" + name).st_uid for name in names} == {place.uid}
    assert (made / "renamed").read_text() == "plain"
    assert (made / "renamed").stat().st_mode & 0o7777 == 0o640
    assert (made / "link").readlink() == Path("plain")
    assert not (place.home / "thrown-away").exists()


_COPY = """
import os, signal
while data := os.read(0, 100_000):
    for number in (1, 2):
        rest = data
        while rest:
            rest = rest[os.write(number, rest):]
os.write(1, b"end")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_streams_are_the_callers_byte_for_byte(place: Workplace) -> None:
    """More than any pipe holds, both ways at once, every byte; and a signal that ends the command is the status."""
    data = random.Random(15).randbytes(3_000_000)
    argv = place.argv("--quiet", command=python(_COPY))
    with subprocess.Popen(
        argv,
        env=place.environ,
        cwd=place.project,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        out, errors = child.communicate(data, timeout=100)
    assert child.returncode == 128 + signal.SIGKILL, errors[-500:]
    assert out == data + b"end"
    assert errors == data


_COUNT = """
import os, signal, subprocess, time
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), lambda number, frame: os.write(1, signal.Signals(number).name.encode() + b" "))
print("input", os.read(0, 1), flush=True)
subprocess.Popen(["sleep", "1000"])
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def test_signals_reach_the_command_and_a_killed_run_leaves_nothing(place: Workplace) -> None:
    """Standard input has ended before, as the command can see."""
    before = _left(place)
    with place.running(command=python(_COUNT)) as running:
        running.wait_for("ready")
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
            running.process.send_signal(signal.Signals[name])
            running.wait_for(name)
        assert running.out.startswith("input b''\nready\n")
        assert running.out.split()[3:] == ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"]
        started = processes_of(running)
        assert has_started(running, "qemu-system")
        running.process.kill()
        wait_gone(started)
    assert _left(place) == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_killed_while_it_starts_it_leaves_nothing(place: Workplace, number: signal.Signals) -> None:
    """From the first moment at which there is something, and while the guest boots."""
    before = _left(place)
    for program in ("virtiofsd", "qemu-system"):
        with place.running("--quiet", command=["true"]) as running:
            wait_until(lambda: has_started(running, program), program)  # noqa: B023 - called at once
            started = processes_of(running)
            running.process.send_signal(number)
            running.wait()
            wait_gone(started)
        assert _left(place) == before


def _left(place: Workplace) -> set[str]:
    """What runs leave where they put things: a temporary folder, and the state. The unpacked kernel is to stay."""
    machines = place.home / "state/machines"
    found = {path for folder in (place.temporary, place.home / "state") for path in folder.rglob("*")}
    return {str(path) for path in found - {machines, *machines.glob("vmlinux-*")}}


_LISTEN = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda number, frame: os.write(1, b"<SIGINT>"))
signal.signal(signal.SIGWINCH, lambda number, frame: os.write(1, b"<%d>" % os.get_terminal_size().columns))
print([os.isatty(number) for number in (0, 1, 2)], os.open("/dev/tty", os.O_RDWR) > 2, os.get_terminal_size().columns)
print("ready", flush=True)
for line in sys.stdin:
    print(f"[{line.strip()}]", flush=True)
for name in ("good", "bad"):
    os.system(f"curl -s -o /dev/null -w '<%{{http_code}}>' http://{name}.test:{sys.argv[1]}/")
sys.exit(5)
"""


def test_on_a_terminal_it_has_keys_and_size_and_questions_are_asked(place: Workplace, start_web: StartWeb) -> None:
    web = start_web(hello, "http")
    with Terminal(place.environ | {"TERM": "dumb"}, cwd=str(place.project)) as terminal:
        options = ("--ask", *hosts("good.test", "bad.test"))
        job = place.on(terminal, *options, command=python(_LISTEN, str(web.port)))
        terminal.wait_for("ready")
        assert "[True, True, True] True 80" in terminal.text
        terminal.type("\x03")
        terminal.wait_for("<SIGINT>")
        terminal.resize(30, 100)
        terminal.wait_for("<100>")
        terminal.type("hello\n")
        terminal.wait_for("[hello]")
        terminal.type("\x04")
        for name, key in (("good", "y"), ("bad", "n")):
            terminal.wait_for(f"allow {name}.test:{web.port}?")
            time.sleep(_QUIET_S)
            terminal.type(key)
        assert terminal.wait(job) == ("exited", 5), terminal.text
        assert "<200>" in terminal.text
        assert "<403>" in terminal.text
        assert "asked by" not in terminal.text  # it would be QEMU, whichever program of the guest it is
    assert len(web.requests) == 1


def test_a_named_guest_keeps_what_it_learned_and_its_files(place: Workplace, start_web: StartWeb) -> None:
    """The second time as root of the guest, who is the caller outside; without rules but those that were learned."""
    web = start_web(hello, "http")
    rules = place.home / "rules.toml"
    fetch = f"curl -fsS -o /dev/null -w '%{{http_code}}\\n' --noproxy '*' http://good.test:{web.port}/"
    named = ("--name", f"kept{web.port}", *hosts("good.test"))
    command = ["sh", "-c", f"{fetch}; echo kept > $HOME/kept; touch by-user"]
    learned = place.run(*named, "--new", "--learn", "--learn-out", str(rules), command=command)
    assert (learned.status, learned.stdout) == (0, "200\n"), learned
    assert f"good.test:{web.port}" in rules.read_text()
    look = f"{fetch}; cat $HOME/kept; id -u; echo mine > by-root; mkdir d; chown 0:0 by-root; exec no-such-program"
    again = place.run(*named, "--policy", str(rules), "--guest-root", command=["sh", "-c", look])
    assert (again.status, again.stdout) == (127, "200\nkept\n0\n"), again
    assert len(web.requests) == 2
    assert {(place.project / name).stat().st_uid for name in ("by-user", "by-root", "d")} == {place.uid}
    assert not (place.home / "kept").exists()


def test_a_program_that_is_not_there(place: Workplace) -> None:
    """Nor is there any standard input."""
    closed = ["sh", "-c", 'exec "$@" <&-', "sh"]
    done = exeat(
        argv=place.argv("--quiet", command=["no-such-program"]), before=closed, env=place.environ, cwd=place.project
    )
    assert (done.status, done.stdout) == (127, ""), done
    assert "no-such-program" in done.stderr
