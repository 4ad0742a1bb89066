"""Nothing leaks when things go wrong (D8, H5): every error is told, and none of them with a value in it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import traceback
from collections.abc import Sequence
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.sources import RuleSources
from tests.support.fixtures.gateways import StartOrigin
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import Handler, Origin
from tests.support.programs import Finished
from tests.support.runs.leak_scan import Needles, gateway_of, hits_in_files
from tests.support.runs.running import AS_ROOT, NOBODY, Process, exeat, run_argv, wait_gone
from tests.support.runs.secret_runs import HOST, SOURCES, Hoard, SecretRun, authority, places, tls_echo, workshop

pytestmark = pytest.mark.threat("T-H5")

TOKEN = os.urandom(12).hex()
VALUE = f"live-0000{TOKEN}"
NEEDLES = Needles(TOKEN, {"VALUE": VALUE})
HOSTS = ["api.test"]


def spec(**settings: object) -> str:
    return json.dumps({"KEY": {"hosts": HOSTS, **settings}})


def shell(script: str, **settings: object) -> str:
    return spec(command=["sh", "-c", script], **settings)


def check_quiet(folder: Path, done: Finished, meant: Sequence[Path]) -> None:
    """No value on the way out, or in any file that the run has left."""
    assert NEEDLES.find(done.stdout.encode() + done.stderr.encode()) == set()
    assert hits_in_files([folder], NEEDLES, but=meant) == {}
    assert list((folder / "tmp").iterdir()) == []


# Secrets that cannot be fetched: what the file says, and what the error says

UNFETCHED = {
    "command-fails": (shell(f"echo {VALUE}; exit 3"), "its command ended with status 3"),
    "command-prints-garbage": (shell(f"printf '{VALUE}\\001\\377{VALUE}'"), "control character"),
    "command-prints-no-end": (shell(f"yes {VALUE}"), "over 64 KiB"),
    "command-hangs": (shell(f"echo {VALUE}; sleep 1003", timeout_s=0.2), "did not end within 0.2 s"),
    "command-is-not-there": (spec(command=[f"/nowhere/{VALUE}", VALUE]), "cannot be started: No such file"),
    "file-is-not-there": (spec(file="/nowhere/at-all"), "cannot be read: No such file"),
    "variable-is-not-set": (spec(env="NOT_SET_HERE"), "NOT_SET_HERE is not set"),
    "not-json": (f'{{"KEY": {{"value": "{VALUE}" "hosts"', "not valid JSON"),
    "value-for-a-name": (json.dumps({VALUE: {"value": VALUE, "hosts": HOSTS}}), "not a name for a secret"),
    "line-end": (spec(value=f"{VALUE}\n"), "control character at byte 34 of 34"),
}


@pytest.mark.parametrize("kind", UNFETCHED)
def test_a_secret_that_cannot_be_had_is_told_of_without_it(kind: str) -> None:
    content, problem = UNFETCHED[kind]
    with workshop(None) as folder:
        path, audit = folder / "s.json", folder / "work" / "audit.jsonl"
        path.write_text(content)
        path.chmod(0o600)
        options = ("--secrets", str(path), "--audit", str(audit))
        done = exeat(*options, command=["echo", "ran"], env=places(folder), cwd=folder)
        assert (done.status, done.stdout) == (2, "")
        assert done.stderr.startswith(f"exeat: {path}:")
        assert problem in done.stderr
        check_quiet(folder, done, [path])
        assert not audit.exists()


UNREADABLE = {
    "not-json-at-all": ("s.json", VALUE, "not valid JSON"),
    "cut-off": ("s.json", f'{{"KEY": {{"value": "{VALUE}', "not valid JSON"),
    "escape": ("s.json", f'{{"KEY": {{"value": "\\{VALUE}"', "not valid JSON"),
    "a-list": ("s.json", json.dumps([VALUE]), "the file holds a list"),
    "not-toml": ("s.toml", f'[KEY]\nvalue = {VALUE}"\n', "not valid TOML"),
    "toml-escape": ("s.toml", f'[KEY]\nvalue = "\\{VALUE}"\n', "not valid TOML"),
    "key-twice": ("s.json", f'{{"{VALUE}": 1, "{VALUE}": 2}}', "is given twice"),
    "table-twice": ("s.toml", f"[{VALUE}]\n[{VALUE}]\n", "not valid TOML"),
    "inline-key-twice": ("s.toml", f"KEY = {{ {VALUE} = 1, {VALUE} = 2 }}\n", "not valid TOML"),
    "unknown-key": ("s.json", spec(value=VALUE, **{VALUE: 1}), "is not a setting of a secret"),
    "value-for-a-table": ("s.json", json.dumps({"KEY": VALUE}), "it is a string"),
    "value-for-a-host": ("s.json", spec(value=VALUE, hosts=[f"{VALUE}:{VALUE}"]), "KEY: "),
    "value-for-hosts": ("s.json", spec(value=VALUE, hosts=VALUE), "hosts is a string"),
    "value-for-a-shape": ("s.json", spec(value=VALUE, shape=VALUE), "there is no such shape"),
    "value-for-a-part": ("s.json", spec(value=VALUE, where=[VALUE]), "is not a part of a request"),
    "value-for-a-variable": ("s.json", spec(env=VALUE), "env is not the name of a variable"),
    "value-for-a-header": ("s.json", spec(value=VALUE, inject={"header": f"{VALUE}:"}), "not the name of a header"),
    "value-for-a-form": ("s.json", spec(value=VALUE, inject={"header": "A", "format": VALUE}), "exactly once"),
    "value-for-a-number": ("s.json", spec(command=["true"], timeout_s=VALUE), "timeout_s is a string"),
    "value-for-a-choice": ("s.json", spec(value=VALUE, on_wrong_host=VALUE), "on_wrong_host is neither"),
    "value-is-the-placeholder": ("s.json", spec(value=VALUE, placeholder=VALUE), "its value is its placeholder"),
    "nul": ("s.json", spec(value=f"a\0{VALUE}"), "control character at byte 2"),
    "surrogate": ("s.json", f'{{"KEY": {{"value": "{VALUE}\\ud800", "hosts": ["api.test"]}}}}', "not valid text"),
    "two-sources": ("s.json", spec(value=VALUE, env=VALUE), "both given"),
    "policy": ("p.toml", f'[secrets.KEY]\nvalue = "{VALUE}"\n', "KEY: it has no hosts"),
    "policy-key": ("p.toml", f'[secret.KEY]\nvalue = "{VALUE}"\n', "is not a key of a policy"),
    "not-utf-8": ("s.toml", f'[KEY]\nvalue = "{VALUE}\udcff"\n', "not UTF-8"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_no_error_about_a_file_shows_a_value(tmp_path: Path, kind: str) -> None:
    """Nor does its traceback, if someone sees that: no error before it, which may have the whole text, is chained."""
    name, content, problem = UNREADABLE[kind]
    path = tmp_path / name
    path.write_bytes(content.encode(errors="surrogateescape"))
    option = "files" if name == "p.toml" else "secrets_files"
    with pytest.raises(ConfigError, match=re.escape(problem)) as caught:
        RuleSources(**{option: (str(path),)}).load()  # type: ignore[arg-type]
    error = caught.value
    assert NEEDLES.find("".join((str(error), repr(error), *traceback.format_exception(error))).encode()) == set()
    assert str(error).startswith(f"{path}:")


@pytest.mark.parametrize(
    "text",
    [VALUE, f'{{"KEY": "{VALUE}"}}', f'{{"KEY": {{"value": "{VALUE}\udcff"}}}}'],
    ids=["no JSON", "no table", "no text"],
)
def test_a_variable_that_cannot_be_used_is_told_of_without_its_content(text: str) -> None:
    with workshop(None) as folder:
        done = exeat(command=["echo", "ran"], env=places(folder) | {"EXEAT_SECRETS_JSON": text}, cwd=folder)
        assert (done.status, done.stdout) == (2, "")
        assert done.stderr.startswith("exeat: EXEAT_SECRETS_JSON:1")
        check_quiet(folder, done, [])


@AS_ROOT
@pytest.mark.parametrize("what", ["secrets", "file"])
def test_a_file_of_somebody_elses_is_told_of(what: str) -> None:
    with workshop(NOBODY) as folder:
        held, listed = folder / "held", folder / "s.json"
        held.write_text(VALUE)
        listed.write_text(spec(file=str(held)) if what == "file" else spec(value=VALUE))
        for path, mode in ((held, 0o600), (listed, 0o644 if what == "file" else 0o600)):
            path.chmod(mode)
        done = exeat("--secrets", str(listed), command=["echo", "ran"], uid=NOBODY, env=places(folder), cwd=folder)
        assert (done.status, done.stdout) == (2, "")
        assert "cannot be read: Permission denied" in done.stderr
        check_quiet(folder, done, [held, listed])


# Runs that do not come about, or end badly


@pytest.mark.parametrize(("jail", "command"), [("netns", ["/nowhere/at-all"]), ("env", ["/"])])
def test_a_command_that_cannot_be_started(jail: str, command: list[str]) -> None:
    with workshop(None) as folder:
        hoard = Hoard(folder, 443)
        with SecretRun(folder, hoard, "--jail", jail, command=command) as run:
            assert run.wait() == (127 if command == ["/nowhere/at-all"] else 126)
        assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}
        assert list((folder / "tmp").iterdir()) == []


@AS_ROOT
def test_a_jail_that_cannot_be_built() -> None:
    with workshop(NOBODY) as folder:
        hoard = Hoard(folder, 443, uid=NOBODY)
        with SecretRun(folder, hoard, "--jail", "nft", command=["true"], uid=NOBODY) as run:
            assert run.wait() == 2
        assert "nft" in run.errors
        assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}


@pytest.mark.parametrize(
    ("jail", "option"),
    [("netns", ("--env", "NOT_SET_HERE")), ("env", ("--env", "NOT_SET_HERE")), ("netns", ("--unix", "relative"))],
)
def test_an_option_that_cannot_be_used_leaves_nothing_behind(jail: str, option: tuple[str, str]) -> None:
    with workshop(None) as folder:
        hoard = Hoard(folder, 443)
        with SecretRun(folder, hoard, "--jail", jail, *option, command=["true"]) as run:
            assert run.wait() == 2
        assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}
        assert list((folder / "tmp").iterdir()) == []
        assert not run.audit.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_the_gateways_death(start_origin: StartOrigin, number: signal.Signals) -> None:
    """Whatever Python may say when it crashes, it says nothing of values."""
    origin: Origin = start_origin(tls_echo())
    with workshop(None) as folder:
        hoard = Hoard(folder, origin.port)
        hoard.variables["PYTHONFAULTHANDLER"] = "1"
        with SecretRun(folder, hoard, command=hoard.use(origin.port)) as run:
            run.wait_for("ready")
            gateway = Process(gateway_of(run.process.pid))
            gateway.kill(number)
            wait_gone([gateway])
            wait_until(lambda: "the gateway has ended" in run.errors, "exeat to notice")
            assert run.finish() == 0
        assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}


@AS_ROOT
@pytest.mark.parametrize(("jail", "uid"), [("netns", NOBODY), ("env", None)])
def test_ctrl_c(start_origin: StartOrigin, uid: int | None, jail: str) -> None:
    origin: Origin = start_origin(tls_echo())
    with workshop(uid) as folder:
        hoard = Hoard(folder, origin.port, uid=uid)
        with SecretRun(folder, hoard, "--jail", jail, command=hoard.use(origin.port), uid=uid) as run:
            run.wait_for("ready")
            os.killpg(run.process.pid, signal.SIGINT)
            assert run.wait() == 128 + signal.SIGINT
        assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}
        assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("jail", "number"),
    [("netns", signal.SIGINT), ("netns", signal.SIGKILL), ("env", signal.SIGINT), ("env", signal.SIGTERM)],
)
def test_an_end_while_a_secret_is_being_fetched(jail: str, number: signal.Signals) -> None:
    """No one has to wait for a secret's command that hangs, and it does not outlive the run that it was for."""
    with workshop(None) as folder:
        pid = folder / "pid"
        script = f"echo {VALUE}; sleep 1004 & echo $! > {pid}.new; mv {pid}.new {pid}; wait"
        listed = folder / "s.json"
        listed.write_text(shell(script, timeout_s=600))
        argv = ["--jail", jail, "--secrets", str(listed)]
        with (
            (folder / "errors").open("wb") as errors,
            subprocess.Popen(
                run_argv(argv, ["echo", "ran"]),
                env=places(folder),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            ) as run,
        ):
            wait_until(pid.exists, "the secret's command")
            sleeping = Process(int(pid.read_text()))
            os.killpg(run.pid, number)
            status = run.wait(20)
        assert status == (128 + number if number == signal.SIGINT else -number)
        wait_gone([sleeping])
        assert hits_in_files([folder], NEEDLES, but=[listed]) == {}


# Servers that fail


def tls_saying(answer: bytes, host: str = HOST) -> Handler:
    """Reads a head and answers with these bytes, `%s` being all that the client has sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(host).configure_cert(context)

    def handle(conn: socket.socket, origin: Origin) -> None:
        with context.wrap_socket(conn, server_side=True) as channel:
            head = origin.read_head(channel, bytearray())
            if head is not None:
                told = head.split(b"Bearer ")[1].split(b"\r\n")[0].strip()
                channel.sendall(answer.replace(b"%s", told))

    return handle


ANSWERS = {
    "reason": b"HTTP/1.1 500 no %s here\r\nContent-Length: 0\r\n\r\n",
    "garbage": b"%s\r\n\r\n",
    "bad-status": b"HTTP/1.1 %s\r\n\r\n",
    "bad-header": b"HTTP/1.1 200 OK\r\n%s\r\n\r\n",
    "bad-name": b"HTTP/1.1 200 OK\r\nX(%s): 1\r\nContent-Length: 0\r\n\r\n",
    "name": b"HTTP/1.1 200 OK\r\nX-%s: 1\r\nContent-Length: 0\r\n\r\n",
    "bad-length": b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n",
    "bad-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\n",
    "cut-off": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n%s",
    "bad-coding": b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: 3\r\n\r\nabc",
    "not-gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 33\r\n\r\n%s",
    "trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Told: %s\r\n\r\n",
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: /%s\r\nContent-Length: 0\r\n\r\n",
    "nothing": b"",
}


def test_servers_that_answer_badly(start_origin: StartOrigin) -> None:
    """What a server says back, in whatever broken form, is not passed on as it is, nor put on record."""
    origins: list[Origin] = [start_origin(tls_saying(answer)) for answer in ANSWERS.values()]
    with workshop(None) as folder:
        ports = [origin.port for origin in origins]
        hoard = Hoard(folder, ports[0], ["json"], hosts=[f"{HOST}:{port}" for port in ports])
        with SecretRun(folder, hoard, command=hoard.use(*ports)) as run:
            run.wait_for("ready")
            assert run.finish() == 0
        (value,) = hoard.values.values()
        told = [any(value.encode() in head for head in origin.heads) for origin in origins]
        assert told == [True] * len(ANSWERS), "the control: every server was sent the value"
        assert run.out.count(f"https://{HOST}:") >= len(ANSWERS)
        assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}


def test_servers_that_are_not_to_be_trusted(start_origin: StartOrigin) -> None:
    """No one there, another's certificate, an unknown authority, no TLS, another host, no TLS asked for."""
    named_otherwise: Origin = start_origin(tls_echo("other.test"))
    plain: Origin = start_origin(lambda conn, origin: conn.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    good: Origin = start_origin(tls_echo())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = taken.getsockname()[1]
        with workshop(None) as folder:
            ports = [nobody, named_otherwise.port, plain.port, good.port]
            hoard = Hoard(folder, good.port, ["json", "variable"], hosts=[f"{HOST}:{port}" for port in ports])
            elsewhere = f"other.test:{plain.port}"
            more = ("--allow", elsewhere, "--add-host", "other.test:127.0.0.1")
            urls = [f"http://{elsewhere}/", f"http://{HOST}:{good.port}/"]
            with SecretRun(folder, hoard, *more, command=hoard.use(*ports, urls=urls)) as run:
                run.wait_for("ready")
                assert run.finish() == 0
            lines = [line.split()[1] for line in run.out.splitlines() if line.startswith("http")]
            assert lines == ["502", "502", "502", "200", "403", "403"]
            assert "secret-to-wrong-host" in run.audit.read_text()
            assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}
        assert named_otherwise.heads == plain.heads == []


def test_an_authority_that_nobody_vouches_for(start_origin: StartOrigin) -> None:
    origin: Origin = start_origin(tls_echo())
    with workshop(None) as folder:
        hoard = Hoard(folder, origin.port)
        at = hoard.options.index("--upstream-ca")
        hoard.options = hoard.options[:at] + hoard.options[at + 2 :]
        with SecretRun(folder, hoard, command=hoard.use(origin.port)) as run:
            run.wait_for("ready")
            assert run.finish() == 0
        assert run.out.startswith(f"https://{HOST}:{origin.port}/ 502 ")
        assert origin.heads == []
        assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}


def test_debugging_aids_of_python_show_nothing(start_origin: StartOrigin) -> None:
    """Someone looks for a fault and turns on all that Python has to tell."""
    origin: Origin = start_origin(tls_echo())
    with workshop(None) as folder:
        hoard = Hoard(folder, origin.port, SOURCES)
        hoard.variables |= {"PYTHONDEVMODE": "1", "PYTHONASYNCIODEBUG": "1", "PYTHONVERBOSE": "1"}
        with SecretRun(folder, hoard, command=hoard.use(origin.port)) as run:
            run.wait_for("ready")
            assert run.finish() == 0
        assert " 200 OK " in run.out
        assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}
