"""`SandboxManager` with real commands in real jails: what gets out, what does not, and that nothing is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop

from exeat.embed.finished import Finished, ManagerClosedError, RunLostError, RunTimeoutError
from exeat.embed.sandbox_manager import SandboxManager
from exeat.errors import ConfigError, ExeatError, JailError, StartError
from exeat.gateway.gates.questions import Question
from tests.support.fixtures.gateways import StartOrigin
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import Origin
from tests.support.programs import give_up, need
from tests.support.runs.running import (
    ANYWHERE,
    AS_ROOT,
    NOBODY,
    PYTHON,
    Process,
    as_user,
    children_of,
    descendants_of,
    exeat,
    folder_of,
    python,
    wait_gone,
)

pytestmark = pytest.mark.usefixtures("start_way")

EXAMPLE = Path(__file__).parents[2] / "examples" / "manager.py"
HOSTS = {"good.test": "127.0.0.1", "other.test": "127.0.0.1"}
# Tries each place by name and by address, TCP and UDP, and tells what came of it.
REACH = """
import socket, sys
for place in sys.argv[1:]:
    host, port = place.split(",")
    try:
        with socket.create_connection((host, int(port)), 5) as conn:
            conn.sendall(f"GET / HTTP/1.0\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode())
            print(place, conn.makefile("rb").read(15).decode() or "nothing")
    except OSError as error:
        print(place, type(error).__name__)
"""
# Does not want to end, and has a daemon. The number tells its processes from all others.
STAY = "trap '' TERM; (setsid sleep {0} &); sleep {0} & echo ready; while :; do sleep {0}; done"
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture
def origin(start_origin: StartOrigin) -> Origin:
    return start_origin()


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        yield runner.run


def allowing(origin: Origin, **settings: Any) -> dict[str, Any]:
    return {
        "sandbox": {"network": {"allowed_domains": [f"good.test:{origin.port}"], "hosts": HOSTS}, **settings},
    }


def reach(origin: Origin, *names: str) -> list[str]:
    return python(REACH, *(f"{name},{origin.port}" for name in names))


def own(number: int) -> int:
    """No other worker's, which may run the same test at the same time."""
    return number * 10_000_000 + os.getpid()


def sleepers(number: int) -> list[Process]:
    """Every `sleep` on the machine with this argument, in whatever jail."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == f"sleep\0{number}\0".encode():
                found.append(Process(int(entry.name)))
        except (OSError, IndexError):
            continue  # it has just ended
    return found


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that do not want to end are killed sooner."""
    monkeypatch.setattr("exeat.embed.running.GRACE_S", 0.2)


def test_what_is_allowed_is_reached_and_nothing_else(run: Callable[..., Any], origin: Origin, tmp_path: Path) -> None:
    """The command's streams and status are its own; what exeat says comes apart; every decision is on record."""
    log = tmp_path / "audit.jsonl"

    async def main() -> Finished:
        async with SandboxManager(allowing(origin, audit_log=str(log))) as manager:
            program = f"{REACH}\nprint(sys.stdin.read(), file=sys.stderr); sys.exit(7)"
            command = python(program, *(f"{name},{origin.port}" for name in ("good.test", "other.test", "127.0.0.1")))
            return await manager.run(command, input="given", cwd=ANYWHERE)

    done = run(main())
    lines = done.text.splitlines()
    assert lines[0] == f"good.test,{origin.port} HTTP/1.1 200 OK"
    assert not any("200" in line for line in lines[1:])
    assert (done.returncode, done.stderr, done.truncated) == (7, b"given\n", False)
    said = [" ".join(line.split()) for line in done.said.splitlines()]
    assert said == [
        "exeat: blocked 2 times:",
        f"localhost:{origin.port} 1x --allow localhost:{origin.port}",
        "other.test 1x --allow other.test; for another protocol: --allow other.test:PORT",
    ]
    assert [(denied["host"], denied["port"], denied["rule"]) for denied in done.summary["denied"]] == [
        ("localhost", origin.port, f"localhost:{origin.port}"),
        ("other.test", None, "other.test"),
    ]
    assert (done.summary["exit_status"], done.summary["complete"]) == (7, True)
    assert len(origin.heads) == 1
    records = [json.loads(line) for line in log.read_text().splitlines()]
    decided = {(record["host"], record["verdict"]) for record in records if record["event"] == "decision"}
    assert {("good.test", "allow"), ("other.test", "deny")} <= decided


def test_without_network_nothing_gets_out(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by name, address, UDP or DNS, though the variables of the program itself allow everything.

    The control: the same command with the sandbox off reaches both.
    """
    monkeypatch.setenv("PROXY_ALLOWLIST", f"*:{origin.port} private force,127.0.0.1:*")
    monkeypatch.setenv("EXEAT_ADD_HOSTS", "good.test:127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as witness:
        witness.bind(("127.0.0.1", 0))
        witness.settimeout(5)
        udp = witness.getsockname()[1]
        program = f"{REACH}\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'out', ('127.0.0.1', {udp}))\n"
        command = python(program, f"127.0.0.1,{origin.port}", f"good.test,{origin.port}")
        inside = SandboxManager({"sandbox": {"allow_network": False}}).run_sync(command)
        assert inside.text.splitlines() == [
            f"127.0.0.1,{origin.port} ConnectionRefusedError",
            f"good.test,{origin.port} gaierror",
        ]
        witness.setblocking(False)
        with pytest.raises(BlockingIOError):
            witness.recv(10)
        assert origin.connections == 0
        witness.settimeout(5)
        outside = SandboxManager({"sandbox": {"enabled": False}}).run_sync(command)
        assert outside.text.splitlines()[0] == f"127.0.0.1,{origin.port} HTTP/1.1 200 OK"
        assert witness.recv(10) == b"out"


def test_wrap_works_anywhere_and_goes_by_the_configuration_alone(origin: Origin, tmp_path: Path) -> None:
    """From a folder with modules that would be taken for others, with rules in the environment that do not count."""
    for name in ("exeat", "json", "socket", "argparse"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from the working directory')")
    manager = SandboxManager(allowing(origin))
    hostile = {
        "PYTHONPATH": ".",
        "PROXY_ALLOWLIST": f"other.test:{origin.port} private",
        "EXEAT_POLICY": "/nowhere",
        "EXEAT_SECRETS_JSON": "no JSON",
    }
    done = subprocess.run(
        manager.wrap(reach(origin, "good.test", "other.test")),
        cwd=tmp_path,
        env=os.environ | hostile,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"good.test,{origin.port} HTTP/1.1 200 OK"
    assert "200" not in done.stdout.splitlines()[1]


def test_others_are_untouched(origin: Origin) -> None:
    """While a manager is there and has run something: the environment, and a program that is not run through it."""

    def plain(command: list[str]) -> str:
        return subprocess.run(command, capture_output=True, text=True, timeout=40, check=True).stdout

    environ, inherited = dict(os.environ), plain(["env"])
    with SandboxManager(allowing(origin)) as manager:
        assert manager.run_sync(["true"]).returncode == 0
        assert dict(os.environ) == environ
        assert plain(["env"]) == inherited
        assert plain(reach(origin, "127.0.0.1")) == f"127.0.0.1,{origin.port} HTTP/1.1 200 OK\n"


def test_the_environment_of_a_command_is_what_it_was_given(origin: Origin) -> None:
    """Nothing of the manager's own: no report, no socket, no variable, no descriptor beyond the three."""
    program = """
import os
print(sorted(item.partition("=")[0] for item in open("/proc/self/environ").read().split("\\0") if item))
print(sorted(os.listdir("/proc/self/fd"))[:-1])
"""
    manager = SandboxManager(allowing(origin), ask=lambda question: False)
    done = manager.run_sync(python(program), env={"PATH": os.environ["PATH"], "ONE": "1"})
    names, descriptors = map(str.strip, done.text.splitlines())
    proxies = [f"{name}_PROXY" for name in ("ALL", "HTTP", "HTTPS", "NO")]
    assert names == str(sorted(["EXEAT", "ONE", "PATH", *proxies, *map(str.lower, proxies)]))
    assert descriptors == "['0', '1', '2']"


@pytest.mark.usefixtures("short_grace")
def test_a_run_that_is_cancelled_leaves_nothing(run: Callable[..., Any], origin: Origin, start_way: str) -> None:
    """Not the command, not its daemon, not the gateway. The other run of the same manager goes on."""
    manager = SandboxManager(allowing(origin))

    async def main() -> Finished:
        await manager.start()
        others = set(descendants_of(os.getpid()))
        one = asyncio.create_task(manager.run(["sh", "-c", STAY.format(own(70_411))]))
        await asyncio.to_thread(wait_until, lambda: len(sleepers(own(70_411))) == 3, "the family")
        everybody = [Process(pid) for pid in descendants_of(os.getpid()) if pid not in others]
        two = asyncio.create_task(manager.run(["cat"], input=b"x" * 300_000))
        await asyncio.sleep(0)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        await asyncio.to_thread(wait_gone, everybody)
        # exeat, its gateway and init, if they were not made ahead; and more
        assert len(everybody) >= (3 if start_way == "prepared" else 6)
        return await two

    done = run(main())
    assert (done.returncode, len(done.stdout)) == (0, 300_000)


@pytest.mark.usefixtures("short_grace")
def test_a_run_whose_time_is_over_is_ended_whole() -> None:
    """In a jail nothing is left of it. What a command had written by then is not lost."""
    with pytest.raises(RunTimeoutError, match=r"in 1 s"):
        SandboxManager({"sandbox": {}}).run_sync(["sh", "-c", STAY.format(own(70_412))], timeout_s=1)
    wait_until(lambda: not sleepers(own(70_412)), "all to end")
    with pytest.raises(TimeoutError) as error:
        SandboxManager({"sandbox": {"enabled": False}}).run_sync(
            ["sh", "-c", f"echo ready; sleep {own(70_415)}"], timeout_s=1
        )
    assert isinstance(error.value, RunTimeoutError)
    assert error.value.finished.stdout == b"ready\n"
    wait_until(lambda: not sleepers(own(70_415)), "all to end")


def test_closing_ends_what_runs_in_other_threads() -> None:
    manager = SandboxManager({"sandbox": {}})
    errors: list[BaseException] = []

    def work() -> None:
        try:
            manager.run_sync(["sleep", str(own(70_413))])
        except ExeatError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    with manager:
        thread.start()
        wait_until(lambda: bool(sleepers(own(70_413))), "the command")
    thread.join(30)
    assert [type(error) for error in errors] == [ManagerClosedError]
    wait_until(lambda: not sleepers(own(70_413)), "all to end")
    with pytest.raises(ManagerClosedError):
        manager.run_sync(["true"])


def test_the_death_of_the_program_is_the_death_of_what_it_runs() -> None:
    """Killed without a chance to clean up."""
    command = ["sleep", str(own(70_414))]
    program = f"from exeat import SandboxManager as Manager; Manager({{'sandbox': {{}}}}).run_sync({command})"
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        wait_until(lambda: bool(sleepers(own(70_414))), "the command")
        everybody = [Process(pid) for pid in descendants_of(child.pid)]
        child.kill()
        wait_gone(everybody)
    assert child.returncode == -signal.SIGKILL


def test_when_exeat_is_killed_nobody_says_that_nothing_was_started() -> None:
    """The command had begun. What it had written is not lost, and nothing of it is left."""
    others = set(descendants_of(os.getpid()))
    with ThreadPoolExecutor(1) as pool:
        command = ["sh", "-c", f"echo ready; sleep {own(70_416)}"]
        future = pool.submit(SandboxManager({"sandbox": {}}).run_sync, command)
        wait_until(lambda: bool(sleepers(own(70_416))), "the command")
        launcher = next(pid for pid in children_of(os.getpid()) if pid not in others)
        os.kill(launcher, signal.SIGKILL)
        with pytest.raises(RunLostError, match="ended by signal 9") as error:
            future.result(30)
    assert error.value.finished.stdout == b"ready\n"
    wait_until(lambda: not sleepers(own(70_416)), "all to end")


def test_questions_go_to_the_callback(run: Callable[..., Any], origin: Origin) -> None:
    """In the caller's loop. A yes lets through; a no, an error and silence do not. Each is asked once."""
    asked: list[Question] = []

    async def main() -> Finished:
        loop = asyncio.get_running_loop()

        async def decide(question: Question) -> bool:
            assert asyncio.get_running_loop() is loop
            asked.append(question)
            if question.host == "error.test":
                raise ValueError("no idea")
            if question.host == "slow.test":
                await asyncio.sleep(3600)
            return question.host == "good.test"

        names = ("good.test", "no.test", "error.test", "slow.test")
        hosts = dict.fromkeys(names, "127.0.0.1")
        manager = SandboxManager({"sandbox": {"network": {"hosts": hosts}}}, ask=decide, ask_timeout_s=4)
        return await manager.run(reach(origin, *names, "good.test", "no.test"), timeout_s=30)

    lines = run(main()).text.splitlines()
    assert ["200" in line for line in lines] == [True, False, False, False, True, False]
    assert [question.host for question in asked] == ["good.test", "no.test", "error.test", "slow.test"]
    assert asked[0].rule == f"good.test:{origin.port}"


def test_a_plain_callback_is_called_beside_the_loop(origin: Origin) -> None:
    """One that hangs is a no in time, and does not keep the run from ending. What is merely true is no yes."""
    hang = threading.Event()

    def decide(question: Question) -> Any:
        return hang.wait(60) if question.host == "slow.test" else {"good.test": True}.get(question.host, "yes")

    names = ("good.test", "true.test", "slow.test")
    manager = SandboxManager(
        {"sandbox": {"network": {"hosts": dict.fromkeys(names, "127.0.0.1")}}}, ask=decide, ask_timeout_s=4
    )
    lines = manager.run_sync(reach(origin, *names)).text.splitlines()
    hang.set()
    assert ["200" in line for line in lines] == [True, False, False]


def test_the_synchronous_face_says_where_it_cannot_be_used() -> None:
    manager = SandboxManager({"sandbox": {}})

    async def main() -> None:
        with pytest.raises(ExeatError, match=r"await manager\.run"):
            manager.run_sync(["true"])
        with pytest.raises(ExeatError, match="async with"):
            manager.__enter__()
        assert (await asyncio.to_thread(manager.run_sync, ["echo", "hi"])).stdout == b"hi\n"

    asyncio.run(main())


def test_output_beyond_the_limit_is_dropped() -> None:
    """What it runs cannot fill the memory of the program, nor be stopped by a full pipe."""
    done = SandboxManager({"sandbox": {}}).run_sync(["head", "-c", "3000000", "/dev/zero"], max_output=1000)
    assert (done.returncode, len(done.stdout), done.truncated) == (0, 1000, True)


def test_what_could_not_be_started_is_an_error_and_no_exit_status(tmp_path: Path) -> None:
    """Status 2 is the command's. A sandbox that cannot be had is said by an exception."""
    assert SandboxManager({"sandbox": {}}).run_sync(["sh", "-c", "exit 2"]).returncode == 2
    missing = SandboxManager({"sandbox": {}}).run_sync(["/nowhere/program"])
    assert (missing.returncode, missing.said) == (127, "exeat: /nowhere/program: No such file or directory\n")
    with pytest.raises(StartError, match="cannot open the audit log"):
        SandboxManager({"sandbox": {"audit_log": str(tmp_path / "no" / "log")}}).run_sync(["true"])
    rules = tmp_path / "secrets.toml"
    rules.write_text('[KEY]\nenv = "NOT_SET_ANYWHERE"\nhosts = ["api.test"]\n')
    with pytest.raises(ConfigError, match="NOT_SET_ANYWHERE"):
        SandboxManager({"sandbox": {"secrets": str(rules)}}).run_sync(["true"])
    with pytest.raises(FileNotFoundError):
        SandboxManager({"sandbox": {}}).run_sync(["true"], cwd=tmp_path / "gone")


def test_a_jail_that_cannot_be_had_is_said_at_the_start() -> None:
    """There is no Seatbelt here. Nothing is run instead, and not without a jail either."""
    manager = SandboxManager({"sandbox": {"jail": "seatbelt"}})
    with pytest.raises(JailError, match="seatbelt"), manager:
        pytest.fail("it has started")
    with pytest.raises(JailError):
        manager.run_sync(["true"])


def test_a_command_gets_a_placeholder_for_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value stays in the program's environment: it is not in the command's, and on no command line."""
    file = tmp_path / "secrets.toml"
    file.write_text('[API_KEY]\nenv = "API_KEY"\nhosts = ["api.test"]\n')
    file.chmod(0o600)
    monkeypatch.setenv("API_KEY", "sk-the-value-itself-0123456789")
    manager = SandboxManager({"sandbox": {"secrets": str(file)}})
    done = manager.run_sync(["printenv", "API_KEY"])
    assert done.returncode == 0
    assert "the-value" not in done.text
    assert "API_KEY is a placeholder" in done.said


def test_two_at_once_share_one_log(origin: Origin, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    manager = SandboxManager(allowing(origin, audit_log=str(log)))

    async def main() -> list[Finished]:
        return await asyncio.gather(*(manager.run(reach(origin, name)) for name in ("good.test", "other.test")))

    good, other = asyncio.run(main())
    assert "200" in good.text
    assert " 200 " not in other.text
    assert log.read_text().count('"event":"start"') == 2
    assert exeat(argv=[sys.executable, "-m", "exeat", "audit", "verify", str(log)]).status == 0


def test_a_sandbox_with_a_name_has_its_own_list_and_log(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list counts, next to the rules of the configuration, and the log is the sandbox's. Where they are is settled
    when the manager is made."""
    folder = tmp_path / "home" / "sandboxes" / "work"
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    manager = SandboxManager(allowing(origin, name="work"))
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "later"))
    assert "sandbox work is new" in manager.run_sync(["true"]).said
    with (folder / "allowlist.txt").open("a") as file:
        file.write(f"listed.test:{origin.port}\n")
    done = manager.run_sync(reach(origin, "good.test", "other.test", "listed.test"))
    assert ["200" in line for line in done.text.splitlines()][:2] == [True, False]
    log = (folder / "audit.jsonl").read_text()
    assert '"rule":"listed.test:' in log  # allowed, though there is no such host
    assert not (tmp_path / "later").exists()


ORDINARY = """
import sys
from exeat.embed.sandbox_manager import SandboxManager
port = sys.argv[1]
network = {"allowed_domains": ["good.test:" + port], "hosts": {"good.test": "127.0.0.1", "other.test": "127.0.0.1"}}
with SandboxManager({"sandbox": {"network": network}}) as manager:
    print(manager.run_sync(sys.argv[2:]).text, end="")
"""


@AS_ROOT
def test_an_ordinary_user_can_do_it_too(origin: Origin) -> None:
    """Root can become one; whoever is none has shown it by all other tests."""
    command = reach(origin, "good.test", "other.test")
    with folder_of(None) as folder:
        interpreter = python_of(NOBODY, folder)
        done = exeat(argv=[*as_user(NOBODY), interpreter, "-c", ORDINARY, str(origin.port), *command], cwd=ANYWHERE)
    lines = done.stdout.splitlines()
    assert lines[:1] == [f"good.test,{origin.port} HTTP/1.1 200 OK"], done
    assert "200" not in lines[1]


def python_of(uid: int, folder: Path) -> str:
    """A Python with exeat that this user can start, and start again from there: ours may be in a closed folder."""
    test = f"import os, sys; sys.exit(not os.access({sys.executable!r}, os.X_OK))"
    if not subprocess.run([*as_user(uid), PYTHON, "-c", test], check=False, timeout=40).returncode:
        return sys.executable
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if Path(PYTHON).resolve().name != version:
        give_up(f"uid {uid} can start no {version}")
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (packages / "ours.pth").write_text("\n".join(each for each in sys.path if each.endswith(("site-packages", "src"))))
    (folder / "pyvenv.cfg").write_text(f"home = {Path(PYTHON).parent}\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(PYTHON)
    return str(folder / "bin" / "python")


def test_the_example_goes_as_it_says() -> None:
    need("curl")
    done = exeat(argv=[sys.executable, str(EXAMPLE)])
    assert (done.status, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "allowed.test -> hi"
    assert [line.partition(":")[0] for line in lines[1:4]] == [
        "asked about asked.test",
        "asked.test -> hi",
        "asked about other.test",
    ]
    assert lines[4].startswith("other.test -> exeat: other.test:")
