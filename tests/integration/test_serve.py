"""`exeat serve` as a process: its settings, and what it refuses to start with (E5, J4)."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from exeat.audit.verify import verify_files
from tests.support.clients.talk import read_reply
from tests.support.fixtures.gateways import StartRawOrigin, StartServing
from tests.support.gateways.serving import HOSTS
from tests.support.programs import need
from tests.support.runs.running import AS_ROOT, NOBODY, as_user, environment

# Settings


def test_every_setting_can_be_a_variable(serve: StartServing, start_raw_origin: StartRawOrigin, tmp_path: Path) -> None:
    """B8: no options at all, and the one line on stderr says where it listens, where the log goes, where admin is."""
    origin = start_raw_origin()
    policy = tmp_path / "policy.json"
    policy.write_text(f'{{"allow": ["other.test:{origin.port}"]}}')
    audit, admin = tmp_path / "audit.jsonl", tmp_path / "admin.sock"
    serving = serve(
        audit=None,
        port=None,
        environ={
            "PROXY_PORT": "0",
            "PROXY_ALLOWLIST": f"good.test:{origin.port}, unused.test",
            "EXEAT_POLICY": str(policy),
            "EXEAT_ADD_HOSTS": "good.test:127.0.0.1,other.test:127.0.0.1",
            "EXEAT_AUDIT": str(audit),
            "EXEAT_ADMIN": str(admin),
            "EXEAT_BIND": "127.0.0.1",
            "EXEAT_SANDBOX": "box-1",
            "EXEAT_WORKERS": "1",
            "EXEAT_PROXY_AUTH": "user:secret-word",
        },
    )
    serving.audit = audit
    login = base64.b64encode(b"user:secret-word").decode()
    for host, status in (("good.test", 200), ("other.test", 200), ("evil.test", 403)):
        with serving.connect() as conn:
            authority = f"{host}:{origin.port}"
            head = (
                f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nProxy-Authorization: Basic {login}\r\n\r\n"
            )
            conn.sendall(head.encode())
            assert read_reply(conn).status == status
    assert serving.get("good.test", origin.port).status == 407
    assert serving.ask_admin("/healthz").body == b"ok\n"
    assert {line["sandbox"] for line in serving.lines("decision")} == {"box-1"}
    assert serving.errors == (
        f"exeat: listening on http://127.0.0.1:{serving.port}, 3 rules, audit to {audit}, admin on {admin}\n"
    )
    assert serving.out == ""
    assert "secret-word" not in serving.errors + audit.read_text()


def test_an_option_wins_over_its_variable(serve: StartServing, tmp_path: Path) -> None:
    """B8: port, address, log, admin and name given both ways."""
    serving = serve(
        "--bind",
        "127.0.0.2",
        "--admin",
        "127.0.0.1:0",
        "--sandbox",
        "by-option",
        environ={
            "PROXY_PORT": "1",
            "EXEAT_BIND": "127.0.0.3",
            "EXEAT_AUDIT": str(tmp_path / "not.jsonl"),
            "EXEAT_ADMIN": str(tmp_path / "not.sock"),
            "EXEAT_SANDBOX": "by-variable",
        },
    )
    assert "listening on http://127.0.0.2:" in serving.errors
    assert "admin on 127.0.0.1:" in serving.errors
    assert serving.lines("start")[0]["sandbox"] == "by-option"
    assert not (tmp_path / "not.jsonl").exists()
    assert not (tmp_path / "not.sock").exists()


def test_options_for_rules_add_up_and_deny_wins(serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """B8: --allow and --deny may be given many times, and PROXY_ALLOWLIST counts too."""
    origin = start_raw_origin()
    serving = serve(
        "--allow",
        f"other.test:{origin.port}",
        "--allow",
        f"*.test:{origin.port} force",
        "--deny",
        "evil.test:*",
        *HOSTS,
        environ={"PROXY_ALLOWLIST": f"good.test:{origin.port}"},
    )
    codes = [serving.get(host, origin.port).status for host in ("good.test", "other.test", "evil.test")]
    assert codes == [200, 200, 403]


def test_without_rules_nothing_is_allowed_and_it_says_so(serve: StartServing) -> None:
    """A1: an empty start is a start, and a warning."""
    serving = serve()
    assert "0 rules" in serving.errors
    assert "nothing is allowed yet" in serving.errors
    assert serving.get("good.test", 80).status == 403


def test_the_audit_log_on_standard_output_is_nothing_but_json(
    serve: StartServing, start_raw_origin: StartRawOrigin
) -> None:
    """F1: every line of stdout is a line of the log, and what was written verifies."""
    origin = start_raw_origin()
    serving = serve("--allow", f"good.test:{origin.port}", *HOSTS, audit="-")
    assert "audit to standard output" in serving.errors
    assert serving.get("good.test", origin.port).status == 200
    assert serving.get("evil.test", origin.port).status == 403
    serving.signal(signal.SIGTERM)
    assert serving.process.wait(60) == 0
    events = [json.loads(line)["event"] for line in serving.out.splitlines()]
    assert events[0] == "start"
    assert events[-1] == "stop"
    assert sorted(events[1:-1]) == ["decision", "decision", "end"]
    assert verify_files([str(serving._out)]).ok


BAD_SETTINGS = {
    "port": (["--port", "65536"], {}, "--port"),
    "port text": ([], {"PROXY_PORT": "8888x"}, "PROXY_PORT"),
    "port sign": ([], {"PROXY_PORT": "+80"}, "PROXY_PORT"),
    "workers": ([], {"EXEAT_WORKERS": "0"}, "EXEAT_WORKERS"),
    "many workers": (["--workers", "65"], {}, "--workers"),
    "sandbox": ([], {"EXEAT_SANDBOX": "../x"}, "EXEAT_SANDBOX"),
    "admin": (["--admin", "9000"], {}, "--admin"),
    "admin port": ([], {"EXEAT_ADMIN": "127.0.0.1:http"}, "EXEAT_ADMIN"),
    "bind name": (["--bind", "localhost"], {}, "--bind"),
    "bind nothing": (["--bind", ""], {}, "--bind"),
    "credentials": ([], {"EXEAT_PROXY_AUTH": "only-a-user"}, "EXEAT_PROXY_AUTH"),
    "rule": (["--allow", "good.test", "--allow", "bad rule!"], {}, "--allow"),
    "wildcard": (["--allow", "*"], {}, "--allow"),
    "deny": (["--deny", "exa mple"], {}, "--deny"),
    "host": (["--add-host", "good.test"], {}, "--add-host"),
    "host variable": ([], {"EXEAT_ADD_HOSTS": "good.test:nowhere"}, "EXEAT_ADD_HOSTS"),
    "network": (["--private-network", "127.0.0.0/8"], {}, "--private-network"),
    "network variable": ([], {"EXEAT_PRIVATE_NETWORKS": "10.1.0.0/16,10.2.3.4/8"}, "EXEAT_PRIVATE_NETWORKS item 2"),
    "missing file": (["--policy", "/nonexistent/policy.toml"], {}, "/nonexistent/policy.toml"),
    "a folder": ([], {"EXEAT_POLICY": "/"}, "/"),
    "budget": (["--workers", "2", "--allow", "good.test max_upload=1MB"], {}, "--allow"),
}


@pytest.mark.parametrize(("options", "environ", "named"), BAD_SETTINGS.values(), ids=BAD_SETTINGS.keys())
def test_a_bad_setting_is_an_error_before_anything_starts(
    options: list[str], environ: dict[str, str], named: str, serve: StartServing
) -> None:
    """B8: exit 2, one message that names the setting and what was expected, no log, no port."""
    serving = serve(*options, environ=environ, port=None if "--port" in options or environ.get("PROXY_PORT") else "0")
    assert serving.process.wait(60) == 2
    assert serving.errors.startswith("exeat: ")
    assert named in serving.errors.splitlines()[0]
    assert "expected: " in serving.errors
    assert "listening" not in serving.errors
    assert "only-a-user" not in serving.errors
    assert not serving.audit.exists()


BROKEN_FILES = {
    "syntax": ("allow = [\n  'good.test',\n  oops\n]\n", ":3:3:"),
    "rule": ('allow = [\n  "good.test",\n  "bad rule!"\n]\n', ":3:"),
    "key": ('allow = []\nallowed = ["good.test"]\n', ":2:1:"),
    "limit": ("[limits]\nhead_s = -1\n", ":2:10:"),
    "unknown limit": ("[limits]\nhead = 1\n", ":2:"),
    "twice": ('allow = ["a.test"]\nallow = ["b.test"]\n', ":2:"),
}


@pytest.mark.threat("T-A8")
@pytest.mark.parametrize(("text", "place"), BROKEN_FILES.values(), ids=BROKEN_FILES.keys())
def test_a_broken_policy_file_is_named_with_line_and_column(text: str, place: str, serve: StartServing) -> None:
    """Exit 2; the good rules next to the bad one do not count."""
    serving = serve("--allow", "good.test", policy=text)
    assert serving.process.wait(60) == 2
    assert f"policy.toml{place}" in serving.errors.splitlines()[0]
    assert not serving.audit.exists()


@pytest.mark.threat("T-A8")
def test_a_policy_file_without_rights_is_an_error(serve: StartServing, tmp_path: Path) -> None:
    """Unreadable is not empty. A privileged user can read anything, so it becomes another one."""
    policy = tmp_path / "locked.toml"
    policy.write_text('allow = ["good.test"]\n')
    policy.chmod(0)
    command: tuple[str, ...] = ()
    if os.access(policy, os.R_OK):
        command = (sys.executable, "-c", _DROP_READ, "--")
    serving = serve("--policy", str(policy), command=command)
    assert serving.process.wait(60) == 2
    assert "cannot be read: Permission denied" in serving.errors


# Give up the right to read everything, and run the rest of the command line.
_DROP_READ = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.prctl(24, capability, 0, 0, 0) == 0  # PR_CAPBSET_DROP
os.execv(sys.argv[2], sys.argv[2:])
"""

INJECTIONS = {
    "a second line": "good.test,*\nevil.test",
    "a line of its own": "good.test\nevil.test",
    "carriage return": "good.test\revil.test",
    "a wildcard among others": "good.test,*,other.test",
    "every port of everything": "good.test,*:*",
    "a suffix": "good.test,*.com",
    "a separator of another kind": "good.test\u2028evil.test",
    "a shell's idea": "good.test;evil.test",
    "user info": "good.test,x@evil.test",
    "a URL": "good.test,http://evil.test/",
    "an option that is none": "good.test all=yes",
    "a tab": "good.test\tevil.test",
}


@pytest.mark.threat("T-J4")
@pytest.mark.parametrize("text", INJECTIONS.values(), ids=INJECTIONS.keys())
def test_an_injected_allowlist_is_refused_whole(text: str, serve: StartServing) -> None:
    """Nothing starts; the good parts of a bad value are not used either."""
    serving = serve(environ={"PROXY_ALLOWLIST": text})
    assert serving.process.wait(60) == 2
    assert "PROXY_ALLOWLIST" in serving.errors
    assert not serving.audit.exists()


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("taken_by", ["another program", "a gateway", "a gateway with workers"])
def test_a_port_in_use_is_an_error(taken_by: str, workers: str, serve: StartServing) -> None:
    """B9: exit 2 and a sentence with the address; never a run without a proxy, and never two that share a port."""
    holder = socket.create_server(("127.0.0.1", 0)) if taken_by == "another program" else None
    if holder is not None:
        port = holder.getsockname()[1]
    else:
        port = serve("--workers", "2" if taken_by.endswith("workers") else "1").port
    serving = serve("--workers", workers, port=str(port))
    assert serving.process.wait(60) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in serving.errors
    assert "in use" in serving.errors
    if holder is not None:
        holder.close()


def test_an_address_of_another_machine_is_an_error(serve: StartServing) -> None:
    """B9: the same for an address that is not here (one for documentation)."""
    serving = serve("--bind", "192.0.2.1")
    assert serving.process.wait(60) == 2
    assert "cannot listen on 192.0.2.1:0" in serving.errors


@AS_ROOT
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_that_is_roots_says_permission_and_what_to_do(workers: str) -> None:
    """As someone without rights, where the kernel keeps ports below 1024 for root; in a namespace where it does."""
    need("unshare")
    shielded = [
        "unshare",
        "-n",
        "sh",
        "-c",
        'ip link set lo up; sysctl -qw net.ipv4.ip_unprivileged_port_start=1024; exec "$@"',
        "sh",
    ]
    argv = [*shielded, *as_user(NOBODY), sys.executable, "-m", "exeat", "serve", "--port", "80", "--workers", workers]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=40, check=False, cwd="/", env=environment())
    assert done.returncode == 2, done.stderr
    assert "cannot listen on 127.0.0.1:80: Permission denied" in done.stderr
    assert "8888" in done.stderr
