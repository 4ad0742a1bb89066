"""A hostile command in a container: its process 1, the streams it was given, what it can use up, what it can see."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exeat.engine.find import open_engine
from exeat.jail.container.cell import Cell, CellSpec
from exeat.jail.messages import Exited, receive
from tests.support.engines.base import DOCKER_ROOT, PODMAN_ROOTLESS, Base
from tests.support.engines.runs import Work, at_work
from tests.support.engines.session import Engines
from tests.support.gateways.scene import wait_until
from tests.support.runs.running import Running, exeat

_PYTHON = ("python3", "-I", "-S", "-c")


@pytest.fixture(scope="module", params=[DOCKER_ROOT, PODMAN_ROOTLESS], ids=lambda way: way.name)
def work(request: pytest.FixtureRequest, engines: Engines) -> Iterator[Work]:
    """By an engine of root's and by one that is no one's but its user's."""
    with at_work(engines.get(request.param)) as made:
        yield made


@pytest.fixture(scope="module")
def docker_work(docker: Base) -> Iterator[Work]:
    with at_work(docker) as made:
        yield made


def _tries(work: Work, script: str, *arguments: str, options: tuple[str, ...] = ()) -> dict[str, str]:
    """What came of each attempt, by the name of its function."""
    done = work.inside(*_PYTHON, _TRY_ALL.replace("ATTEMPTS", script), *arguments, options=options)
    assert done.status == 0, done.stderr
    return dict(json.loads(done.stdout))


_TRY_ALL = """
import ctypes, errno, json, os, signal, socket, stat, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
child = os.fork()
if child == 0:
    time.sleep(1000)
ATTEMPTS
said = {}
for name, attempt in [(name, value) for name, value in globals().items() if name.startswith("try_")]:
    try:
        said[name[4:]] = str(attempt() or "done")
    except OSError as error:
        said[name[4:]] = errno.errorcode[error.errno]
os.kill(child, 9)
print(json.dumps(said))
"""

# Each of process 1, and as its control of a child of its own.
_OF_INIT = """
def memory(pid):
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
def environ(pid):
    open(f"/proc/{pid}/environ").close()
def root(pid):
    os.listdir(f"/proc/{pid}/root")
def exe(pid):
    os.close(os.open(f"/proc/{pid}/exe", os.O_RDONLY))
def descriptor(pid):
    handle = os.pidfd_open(pid)
    for number in range(16):
        try:
            return "took %d" % check(libc.syscall(438, handle, number, 0))
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
def ptrace(pid):
    check(libc.ptrace(0x4206, pid, None, None))
    check(libc.ptrace(17, pid, None, None)) if pid == 1 else None
for each in (memory, environ, root, exe, descriptor, ptrace):
    globals()["try_own_" + each.__name__] = lambda each=each: each(child) and None
    globals()["try_init_" + each.__name__] = lambda each=each: each(1) and None
def try_limits():
    import resource
    for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_DATA, resource.RLIMIT_SIGPENDING):
        resource.prlimit(1, each, (0, 0))
def try_connect():
    name = open("/proc/1/cmdline").read().split(chr(0))[1]
    socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(chr(0) + name)
def try_write_program():
    os.close(os.open("/run/exeat/init", os.O_WRONLY))
def try_mounted():
    return "read-only" if os.statvfs("/run/exeat/init").f_flag & os.ST_RDONLY else "writable"
def try_replace_program():
    open("/tmp/mine", "w").close()
    os.rename("/tmp/mine", "/run/exeat/init")
def try_remove_program():
    os.unlink("/run/exeat/init")
def try_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, set(range(1, 65)) - {9, 19})
    for number in set(range(1, 65)) - {32, 33}:
        os.kill(1, number)
def try_all_signals():
    other = os.fork()
    if other == 0:
        signal.pause()
    signal.pthread_sigmask(signal.SIG_BLOCK, set(range(1, 65)) - {9, 19})
    os.kill(-1, 9)
    return "killed %d" % os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
"""


@pytest.mark.threat("T-F7")
def test_process_1_is_out_of_reach(work: Work) -> None:
    said = _tries(work, _OF_INIT)
    own = {name: what for name, what in said.items() if name.startswith("own_")}
    assert own.pop("own_descriptor") in ("done", "EPERM")  # some engines refuse it to all: test_init.py has the control
    assert set(own.values()) == {"done"}, own  # the controls
    of_init = {name: what for name, what in said.items() if name.startswith("init_")}
    assert set(of_init.values()) <= {"EACCES", "EPERM"}, of_init
    assert said["connect"] == "ECONNREFUSED"
    assert said["mounted"] == "read-only"
    refusals = {"EROFS", "EBUSY", "EXDEV", "EACCES", "ETXTBSY"}
    assert {said[f"{what}_program"] for what in ("write", "replace", "remove")} <= refusals
    assert said["limits"] in ("done", "EPERM")  # whatever it was left with, it does its work
    assert said["signals"] == "done"  # it is still there: the others came after
    assert said["all_signals"] == "killed -9"


# What a caller may have as standard input. Each is first given to a container as it is, which is the control: that
# the command can do what it must not do with it.

_WITH_INPUT = """
import os, socket, sys
os.chdir("/")
try:
    match sys.argv[1]:
        case "file":
            os.close(os.open("/proc/self/fd/0", os.O_WRONLY))
            print("writes")
        case "socket":
            socket.socket(fileno=0).connect(("127.0.0.1", int(sys.argv[2])))
            print("connects")
        case "handle":
            os.close(os.open("/proc/self/fd/0", os.O_RDWR))
            print("writes")
except OSError as error:
    print(error.strerror)
"""


def _command(what: str, port: int) -> list[str]:
    """Python does not start with a folder as its input."""
    if what == "folder":
        return ["cat", "/proc/self/fd/0/secret"]
    return [*_PYTHON, _WITH_INPUT, what, str(port)]


def _given_as_it_is(base: Base, given: int, command: list[str]) -> str:
    """By a container of exeat's, without the checks."""
    os.environ["DOCKER_HOST"] = base.variables["DOCKER_HOST"]
    try:
        cell = Cell(open_engine("docker"))
    finally:
        del os.environ["DOCKER_HOST"]
    reader, writer = os.pipe()
    try:
        image = base.ask("GET", f"/images/{base.image}/json")["Id"]
        cell.create(CellSpec(image, command, {"PATH": "/usr/bin:/bin"}, user="0:0"))
        cell.start()
        cell.adopt().close()
        cell.release([given, writer, writer])
        os.close(writer)
        assert cell.control is not None
        with open(reader) as file:
            said = file.read()
        assert receive(cell.control)[0] == Exited(0)
        return said.strip()
    finally:
        cell.close()


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.threat("T-F8", "T-E3")
@pytest.mark.parametrize("what", ["folder", "file", "socket", "handle"])
def test_no_stream_leads_out(what: str, docker_work: Work, port: int) -> None:
    secret = docker_work.write("secret", "not for the command")
    opens: dict[str, Callable[[], int]] = {
        "folder": lambda: os.open(docker_work.home, os.O_RDONLY | os.O_DIRECTORY),
        "file": lambda: os.open(secret, os.O_RDONLY),
        "socket": lambda: socket.socket().detach(),
        "handle": lambda: os.open(secret, os.O_PATH),
    }
    got_out = {"folder": "not for the command", "file": "writes", "socket": "connects", "handle": "writes"}
    given = opens[what]()
    command = _command(what, port)
    assert _given_as_it_is(docker_work.engine, given, command) == got_out[what]
    os.close(given)
    given = opens[what]()
    done = exeat(
        *docker_work.options(),
        command=command,
        env=docker_work.environ,
        cwd=docker_work.project,
        stdin=given,
    )
    os.close(given)
    if what == "file":
        assert (done.status, done.stdout) == (0, "Read-only file system\n"), done.stderr
    else:
        assert done.status in (1, 2)
        assert done.stdout == ""
        assert "standard input is" in done.stderr or "<stdin> is a directory" in done.stderr  # Python itself


@pytest.mark.threat("T-F8")
def test_a_file_as_input_is_read_on_by_the_caller(work: Work) -> None:
    """It was replaced by one that cannot be written to; where the command stopped reading, the caller goes on."""
    path = work.write("work/project/input", "one\ntwo\n")
    work.engine.give(path)
    given = os.open(path, os.O_RDONLY)
    command = [*_PYTHON, "import os; print(os.read(0, 4).decode(), end='')"]
    done = exeat(
        *work.options(),
        command=command,
        before=work.engine.before,
        env=work.environ,
        cwd=work.project,
        stdin=given,
    )
    assert (done.status, done.stdout, os.read(given, 10)) == (0, "one\n", b"two\n"), done.stderr
    os.close(given)


# What it can use up


_USE_UP = {
    "processes": """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
    "memory": "import os\nheld = []\nwhile os.fork() >= 0: held.append(bytearray(os.urandom(1)) * (1 << 24))",
    "descriptors": """
import os, socket
while True:
    try:
        os.dup(0)
    except OSError:
        try: os.fork()
        except OSError: pass
""",
    "files": """
import os
for place in ("/tmp", os.environ["HOME"], "/dev/shm"):
    try:
        with open(place + "/big", "wb") as file:
            while True: file.write(bytes(1 << 20))
    except OSError:
        pass
while True:
    pass
""",
}


@pytest.mark.threat("T-F9")
@pytest.mark.parametrize("what", _USE_UP)
def test_exeat_can_always_end_it(what: str, docker_work: Work, tmp_path: Path) -> None:
    """Ended by SIGTERM, by its own limits, or by the death of exeat: nothing of it is left."""
    options = docker_work.options("--memory", "128m", "--pids", "64", "--cpus", "1")
    before = {each["Id"] for each in docker_work.engine.containers()}
    ready = docker_work.project / f"ready-{what}"
    script = f"open('{ready}', 'w').close()\n" + _USE_UP[what]
    with Running(
        tmp_path, *options, command=[*_PYTHON, script], env=docker_work.environ, cwd=docker_work.project
    ) as run:
        wait_until(ready.exists, "the command")
        run.process.send_signal(signal.SIGKILL if what == "processes" else signal.SIGTERM)
        run.wait()
    wait_until(lambda: {each["Id"] for each in docker_work.engine.containers()} <= before, "the end of its container")
    assert docker_work.inside("true").status == 0  # and the next one starts


# What it can see, and who else can see it


_LOOK = """
import os, sys
print(dict(os.environ))
for path in ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/proc/self/mountinfo"):
    print(open(path).read())
for top, folders, files in os.walk("/"):
    if top in ("/proc", "/sys", "/dev", "/usr"):
        folders[:], files = [], []
    for name in files:
        try:
            with open(os.path.join(top, name), "rb") as file:
                if b"PRIVATE " + b"KEY-----" in file.read(100_000):
                    print("KEY", top, name)
        except OSError:
            pass
for path in sys.argv[1:]:
    print("THERE" if os.path.exists(path) else "gone")
"""


@pytest.mark.threat("T-F2", "T-F10")
def test_it_sees_nothing_of_the_machine_and_others_see_no_secret(docker_work: Work, tmp_path: Path) -> None:
    """Not in its files and variables, nor in what the engine tells whoever may ask it."""
    base = docker_work.engine
    secrets = tmp_path / "secrets.toml"
    secrets.write_text('[TOKEN]\nvalue = "the-real-value"\nhosts = ["api.test"]\n')
    options = docker_work.options("--allow", "api.test", "--secrets", str(secrets))
    held = docker_work.project / "look"
    command = ["sh", "-c", f'echo up; until [ -e {held} ]; do sleep 0.1; done; exec python3 -I -S -c "$0" "$@"', _LOOK]
    environment = docker_work.environ | {"OF_THE_CALLER": "not-for-the-command"}
    with Running(
        tmp_path,
        *options,
        command=[*command, str(base.socket), "/var/run/docker.sock", "/run/docker.sock"],
        env=environment,
        cwd=docker_work.project,
    ) as run:
        run.wait_for("up")
        running = [each["Id"] for each in base.containers("exeat.kind=run") if each["State"] == "running"]
        told = [json.dumps(base.ask("GET", f"/containers/{box}/json")) for box in running]
        (inspected,) = [each for each in told if str(held) in each]  # others run at the same engine
        held.touch()
        run.wait()
        seen = run.out
    assert run.process.returncode == 0, run.errors
    for text in (seen, inspected):
        assert "the-real-value" not in text
        assert "not-for-the-command" not in text
        assert "PRIVATE KEY-----" not in text
    assert "'TOKEN': " in seen
    assert seen.count("gone\n") == 3
    assert "THERE" not in seen
    assert "KEY /" not in seen
    assert socket.gethostname() not in seen or len(socket.gethostname()) < 4
    hosts = [line.split()[1] for line in Path("/etc/hosts").read_text().splitlines() if len(line.split()) > 1]
    names = {name for name in hosts if "localhost" not in name and not name.startswith("ip6-")}
    assert not {name for name in names if name in seen}
