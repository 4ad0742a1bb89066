"""`exeat run --container` with every engine: it is `exeat run`, with the files of an image."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.clients.terminal import Terminal
from tests.support.engines.base import DOCKER_GROUP, PODMAN_ROOTLESS, Base
from tests.support.engines.boxed import Boxed, boxed, python
from tests.support.fixtures.gateways import StartOrigin
from tests.support.fixtures.programs import StartWeb
from tests.support.origins.web import hello
from tests.support.runs.running import hosts
from tests.support.runs.secret_runs import HOST, Hoard, tls_echo

QUIET_S = 0.7  # after a question, before a key can be an answer
# Streams, terminals and lists are passed by exeat, not by the engine: two ways that differ in everything are enough.
SOME = pytest.mark.parametrize("engine", [DOCKER_GROUP, PODMAN_ROOTLESS], ids=lambda way: way.name, indirect=True)


@pytest.fixture(scope="module")
def box(engine: Base) -> Iterator[Boxed]:
    with boxed(engine) as made:
        yield made


# Asks for each URL as a program that knows no proxy, and then as one that does. Says how it went.
ASK = """
import os, sys, urllib.error, urllib.request
def ask(opener, url):
    try:
        with opener.open(url, timeout=20) as answer:
            return f"{answer.status} {answer.read().decode().strip()}"
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError as error:
        return "refused"
for proxies in ({}, {"http": os.environ["http_proxy"]}):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    for url in sys.argv[1:]:
        print(ask(opener, url))
"""


@pytest.mark.threat("T-E8")
def test_rules_decide_whatever_the_program_knows(box: Boxed, start_web: StartWeb) -> None:
    web = start_web(hello, "http")
    other = start_web(hello, "http")
    good, bad = "good.mine.test", "bad.mine.test"
    named = [(good, web.port), (bad, web.port), (good, other.port), ("other.example", web.port)]
    rules = ["--allow", f"*.mine.test:{web.port}", "--deny", f"bad.mine.test:{web.port}", *hosts(good, bad)]
    log = box.logged(*rules, command=python(ASK, *(f"http://{host}:{port}/" for host, port in named)))
    # DNS does not know what is denied. The other port leads to the gateway, which says no; so it does to proxy users.
    hello_there = "200 hello from the server"
    said = [hello_there, "refused", "403", "refused", hello_there, "403", "403", "403"]
    assert log.done.stdout.splitlines() == said, log.done
    assert log.verdicts == {
        ("allow", good, web.port, "allowed"),
        ("deny", bad, 53, "denied-by-rule"),
        ("deny", bad, web.port, "denied-by-rule"),
        ("deny", good, other.port, "port-not-listed"),
        ("deny", "other.example", 53, "not-listed"),
        ("deny", "other.example", web.port, "not-listed"),
    }
    assert len(web.requests) == 2
    assert other.requests == []
    start = log.lines[0]
    assert (start["event"], start["jail"], log.lines[-1]["event"]) == ("start", "container", "stop")
    assert "other.example" in log.done.stderr  # the summary


# Sends the placeholder by Python and by curl, which trust what the image and the variables name.
SEND = """
import os, subprocess, sys, urllib.request
url, key = sys.argv[1], os.environ["JSON_KEY"]
print("key", key)
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
print("python", urllib.request.urlopen(request, timeout=20).read().decode().count(key))
curl = subprocess.run(["curl", "-sSf", "-H", f"Authorization: Bearer {key}", url], capture_output=True, text=True)
print("curl", curl.stdout.count(key), curl.stderr)
bare = subprocess.run(["env", "-i", "/usr/bin/curl", "-sSf", url], capture_output=True, text=True)
print("without variables", bare.returncode, bare.stderr)
print("in the environment", any("live-" in value for value in os.environ.values()))
"""


def test_secrets_are_replaced_outside(box: Boxed, start_origin: StartOrigin) -> None:
    """The server gets the value; the container has a placeholder. The image's own list of roots has exeat's."""
    origin = start_origin(tls_echo())
    folder = box.folder / f"secrets-{origin.port}"
    folder.mkdir()
    hoard = Hoard(folder, origin.port, ["json"])
    box.base.give(folder)
    done = box.run(*hoard.options, command=python(SEND, f"https://{HOST}:{origin.port}/"))
    key, *said = done.stdout.splitlines()
    assert said == ["python 1", "curl 1 ", "without variables 0 ", "in the environment False"], done
    value = hoard.values["JSON_KEY"].encode()
    assert [head.count(value) for head in origin.heads] == [1, 1, 0]
    assert key.split()[1] != hoard.values["JSON_KEY"]
    assert hoard.token not in done.stdout + done.stderr


LOOK = """
import json, os, resource
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
home = os.environ["HOME"]
def writes(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False
def size(path):
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize
kinds = dict(line.split()[1:3] for line in open("/proc/self/mounts"))
in_memory = [path for path, kind in kinds.items() if kind == "tmpfs" and not path.startswith(("/dev", "/proc", "/sys"))]
print(json.dumps({
    "caps": [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privs": status["NoNewPrivs"], "seccomp": status["Seccomp"], "uid": os.getuid(), "cwd": os.getcwd(),
    "writes": {path: writes(f"{path}/probe") for path in ("/", "/usr", "/etc", "/run", "/tmp", "/var/tmp", home, ".")},
    "in_memory": {path: size(path) for path in in_memory}, "at_home": os.listdir(home),
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "environ": dict(os.environ), "pid": os.getpid(), "processes": sorted(p for p in os.listdir("/proc") if p.isdigit()),
}))
"""
# What an image, an engine and exeat set by themselves.
OWN_VARIABLES = re.compile(r"(?i)^(PATH|HOME|HOSTNAME|TERM|LC_CTYPE|container|EXEAT|(http|https|all|no)_proxy|\w*_IN)$")


@pytest.mark.threat("T-E2", "T-F9")
def test_it_is_hardened_and_gets_no_variable_that_was_not_named(box: Boxed) -> None:
    # Without root there are no control groups to limit by, where those of both versions are mounted.
    limited = [] if box.base.name == "podman-rootless" else ["--memory", "300m", "--pids", "60", "--cpus", "1"]
    options = [*limited, "--env", "NAMED", "--env", "SET=here"]
    with box.running(
        *options,
        command=python(LOOK + "input()"),
        stdin=subprocess.PIPE,
        env=box.environment(NAMED="named", SECRET_OF_HOST="host", LANG="C.UTF-8"),
    ) as running:
        running.wait_for("}\n")
        (made,) = box.containers_of(running.process.pid, "run")
        limits = box.base.ask("GET", f"/containers/{made['Id']}/json")["HostConfig"]
        running.process.communicate(b"\n")
        found = json.loads(running.out)
        assert running.wait() == 0, running.errors
    assert found["caps"] == [0] * 5
    assert (found["no_new_privs"], found["seccomp"]) == ("1", "2")
    assert found["uid"] == (box.base.uid or 0)
    assert found["cwd"] == str(box.work)
    home = found["environ"]["HOME"]
    written = {path for path, can in found["writes"].items() if can}
    # Podman has these if the root is read-only, whatever it is told; the first only root may write to.
    podmans = {"/run", "/var/tmp"} if box.base.kind == "podman" else set()
    assert written - podmans == {"/tmp", home, "."}
    assert set(found["in_memory"]) == {"/tmp", home} | podmans
    assert all(0 < size <= 1 << 30 for size in found["in_memory"].values()), found["in_memory"]
    assert found["at_home"] == ["probe"]  # not what the image has there
    assert (box.work / "probe").exists()
    assert not (box.home / "probe").exists()
    assert "eth0" not in found["interfaces"]
    assert found["environ"]["NAMED"] == "named"
    assert found["environ"]["SET"] == "here"
    others = {name for name in found["environ"] if not OWN_VARIABLES.match(name)} - {"NAMED", "SET"}
    assert others == set()
    assert (limits["NetworkMode"], limits["Privileged"], limits["ReadonlyRootfs"]) == ("none", False, True)
    if limited:
        assert (limits["Memory"], limits["PidsLimit"]) == (300 << 20, 60)
    box.wait_gone(running.process.pid)


@SOME
def test_how_the_command_ends_is_how_exeat_ends(box: Boxed) -> None:
    (box.work / "no-program").write_text("text")
    box.base.give(box.work / "no-program")
    assert box.run(command=["sh", "-c", "exit 7"]).status == 7
    missing = box.run(command=["no-such-program"])
    assert (missing.status, missing.stdout) == (127, "")
    assert "no-such-program" in missing.stderr
    refused = box.run(command=[str(box.work / "no-program")])
    assert refused.status == 126
    assert "no-program" in refused.stderr
    assert box.run(command=["sh", "-c", "kill -9 $$"]).status == 128 + signal.SIGKILL


COPY = """
import os
while data := os.read(0, 100_000):
    for number in (1, 2):
        rest = data
        while rest:
            rest = rest[os.write(number, rest):]
os.write(1, b"end\\n")
"""


IDENTITIES = """
import json, os
files = [line.split()[4] for line in open("/proc/self/mountinfo") if line.split()[4].startswith(("/etc/", "/run/"))]
found = {path: "{0.st_dev}.{0.st_ino}".format(os.stat(path)) for path in files}
print(json.dumps({"files": found, "project": os.stat(".").st_ino}))
"""


@pytest.mark.threat("T-F11")
def test_no_file_of_exeats_is_in_two_containers(box: Boxed) -> None:
    """Who watches it would be told when the other one starts. The control: the project is in both."""
    with box.running(command=python(IDENTITIES + "input()"), stdin=subprocess.PIPE) as first:
        first.wait_for("}\n")
        one, two = json.loads(first.out), json.loads(box.run(command=python(IDENTITIES)).stdout)
        first.process.communicate(b"\n")
    assert one["project"] == two["project"]
    assert set(one["files"]) >= {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/exeat/init"}
    assert not set(one["files"].values()) & set(two["files"].values()), (one, two)
    assert not list((box.home / "state").glob("exeat/running/*"))


@SOME
def test_input_and_output_are_the_callers_own(box: Boxed) -> None:
    """More than a pipe holds, to both, and an end of input."""
    text = "".join(f"line {number}\n" for number in range(40_000))
    done = box.run(command=python(COPY), given=text)
    assert done.status == 0
    assert done.stdout == f"{text}end\n"
    assert done.stderr.endswith(text)  # after what exeat says of an engine that cannot limit memory


COUNT = """
import os, signal, time
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"):
    signal.signal(getattr(signal, name), lambda number, frame: os.write(1, signal.Signals(number).name.encode() + b" "))
done = []
signal.signal(signal.SIGUSR2, lambda number, frame: done.append(number))
print("ready", flush=True)
while not done:
    time.sleep(0.01)
"""


def test_signals_reach_the_command_once_and_end_it(box: Boxed) -> None:
    with box.running(command=python(COUNT)) as running:
        running.wait_for("ready")
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
            running.process.send_signal(signal.Signals[name])
            running.wait_for(name)
        running.process.send_signal(signal.SIGUSR2)
        assert running.wait() == 0, running.errors
        assert running.out == "ready\nSIGTERM SIGINT SIGHUP SIGUSR1 "
    with box.running(command=["sh", "-c", "echo ready; exec sleep 1000"]) as running:
        running.wait_for("ready")
        running.process.terminate()
        assert running.wait() == 128 + signal.SIGTERM
    box.wait_gone(running.process.pid)


LISTEN = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda number, frame: os.write(1, b"<SIGINT>"))
signal.signal(signal.SIGWINCH, lambda number, frame: os.write(1, b"<%d>" % os.get_terminal_size().columns))
print([os.isatty(number) for number in (0, 1, 2)], os.open("/dev/tty", os.O_RDWR) > 2, os.get_terminal_size().columns)
print("ready", flush=True)
for line in sys.stdin:
    print(f"[{line.strip()}]", flush=True)
sys.exit(5)
"""


@SOME
def test_on_a_terminal_it_has_its_keys_and_size(box: Boxed) -> None:
    with Terminal(box.environment(TERM="dumb"), cwd=str(box.work)) as terminal:
        job = box.on(terminal, command=python(LISTEN))
        terminal.wait_for("ready")
        assert "[True, True, True] True 80" in terminal.text
        terminal.type("\x03")
        terminal.wait_for("<SIGINT>")
        terminal.resize(30, 100)
        terminal.wait_for("<100>")
        terminal.type("hello\n")
        terminal.wait_for("[hello]")
        terminal.type("\x04")
        assert terminal.wait(job) == ("exited", 5), terminal.text


@SOME
def test_questions_are_asked_at_the_terminal(box: Boxed, start_web: StartWeb) -> None:
    web = start_web(hello, "http")
    fetch = "for name in good bad; do curl -s -o /dev/null -w '<%{http_code}>' http://$name.test:$0/; done; exit 3"
    with Terminal(box.environment(TERM="dumb"), cwd=str(box.work)) as terminal:
        options = ("--ask", *hosts("good.test", "bad.test"))
        job = box.on(terminal, *options, command=["sh", "-c", fetch, str(web.port)])
        for name, key in (("good", "y"), ("bad", "n")):
            terminal.wait_for(f"allow {name}.test:{web.port}?")
            time.sleep(QUIET_S)
            terminal.type(key)
        assert terminal.wait(job) == ("exited", 3), terminal.text
        assert "<200>" in terminal.text
        assert "<403>" in terminal.text
    assert len(web.requests) == 1


@SOME
def test_a_sandbox_by_name_learns_asks_and_keeps_its_rules(box: Boxed, start_web: StartWeb) -> None:
    web = start_web(hello, "http")
    url = f"http://good.test:{web.port}/"
    fetch = ["curl", "-fsS", "-o", "/dev/null", "-w", "%{http_code}", "--noproxy", "*", url]
    named = ("--name", f"box{web.port}", *hosts("good.test"))
    # Without a rule, without anybody to ask: no.
    closed = box.run(*named, "--new", "--empty", "--summary-json", "-", command=fetch)
    assert closed.status != 0
    summary = json.loads(closed.stdout[closed.stdout.index("{") :])
    assert "good.test" in json.dumps(summary)
    asked = box.run(*named, "--ask", "--ask-timeout", "1", command=fetch)
    assert asked.status != 0, asked
    assert web.requests == []
    # What a run needs, and a run that has it.
    rules = box.home / f"rules-{web.port}.toml"
    learned = box.run(*named, "--learn", "--learn-out", str(rules), command=fetch)
    assert learned.stdout == "200", learned
    assert f"good.test:{web.port}" in rules.read_text()
    assert box.run(*named, "--policy", str(rules), command=fetch).stdout == "200"
    assert len(web.requests) == 2
