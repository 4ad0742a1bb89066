"""What is said when a run is over: what to allow, what failed though it was allowed, and all of it as JSON."""

from __future__ import annotations

import json
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures.gateways import StartOrigin
from tests.support.runs.running import ASK, BY_USER, environment, exeat, folder_of, hosts, python

# Looks each name up, as programs do that know no proxy.
LOOK_UP = """
import socket, sys
for name in sys.argv[1:]:
    try:
        print(len(socket.getaddrinfo(name, 9418)) > 0)
    except OSError:
        print(False)
"""
# TLS to one host that names another.
OTHER_NAME = """
import socket, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
with socket.create_connection(("good.test", 443), 20) as conn:
    try:
        context.wrap_socket(conn, server_hostname="other.test")
    except OSError as error:
        print("refused")
"""


def rows(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def test_a_name_that_was_only_looked_up_names_the_port_problem() -> None:
    done = exeat("--no-proxy-env", command=python(LOOK_UP, "git.test"))
    assert done.stdout == "False\n"
    _, row = rows(done.stderr)
    assert row.startswith("git.test ")
    assert row.endswith("--allow git.test; for another protocol: --allow git.test:PORT")


def test_reverse_look_ups_and_the_machines_own_name_are_no_advice() -> None:
    own = socket.gethostname().partition(".")[0].lower()
    program = LOOK_UP + "\nfor address in ('203.0.113.9', '2001:db8::9'):\n  print(socket.getfqdn(address) == address)"
    done = exeat("--no-proxy-env", command=python(program, f"{own}.localdomain", "control.test"))
    assert "control.test" in done.stderr, "the control: what is not noise is there"
    assert "arpa" not in done.stderr
    assert f"{own}.localdomain" not in done.stderr


def test_failures_of_what_is_allowed_are_told(start_origin: StartOrigin) -> None:
    origin = start_origin()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]  # no one listens there in a moment
    allow = ("--allow", f"good.test:{port} private", "--allow", f"good.test:{origin.port} private max_upload=1KB")
    post = f"try: urllib.request.urlopen('http://good.test:{origin.port}/', b'x' * 5000)\nexcept OSError: 0"
    program = python(ASK + post, f"http://good.test:{port}/", f"http://nowhere.invalid:{port}/")
    done = exeat(*allow, "--allow", f"nowhere.invalid:{port}", *hosts("good.test"), command=program)
    assert done.stdout == "502\n502\n"
    assert {tuple(line.split(None, 2)) for line in rows(done.stderr)[1:]} == {
        (f"good.test:{origin.port}", "1x", "max_upload is spent"),
        (f"good.test:{port}", "1x", "the server refused the connection"),
        (f"nowhere.invalid:{port}", "1x", "the name does not resolve"),
    }
    assert rows(done.stderr)[0] == "exeat: allowed, but failed 3 times:"


def test_tls_for_another_host_names_the_option() -> None:
    allow = ("--allow", "good.test", *hosts("good.test"), "--no-proxy-env")
    done = exeat(*allow, command=python(OTHER_NAME))
    assert done.stdout == "refused\n"
    assert '--allow "good.test allow_sni_mismatch"' in done.stderr


def test_a_denial_in_a_file_is_named_and_no_option_is_advised(tmp_path: Path) -> None:
    policy = tmp_path / "rules.txt"
    policy.write_text("good.test\n!evil.test\n")
    done = exeat("--policy", str(policy), command=python(ASK, "http://evil.test/"))
    assert f'denied by "!evil.test" ({policy}:2' in done.stderr
    assert "--allow" not in done.stderr


def test_a_denial_that_is_kept_says_how_to_take_it_back(tmp_path: Path) -> None:
    home = tmp_path / "home"
    env = environment(EXEAT_HOME=str(home))
    exeat("--new", "--name", "work", "--quiet", command=["true"], env=env)
    (lists,) = home.rglob("allowlist.txt")
    lists.write_text("good.test\n!evil.test\n")
    done = exeat("--name", "work", command=python(ASK, "http://evil.test/"), env=env)
    assert 'denied by "!evil.test"' in done.stderr
    assert "exeat proxy allow evil.test --name work takes it back" in done.stderr


def test_an_agent_that_is_hidden_is_named_if_the_command_failed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent"))
        env = environment(DOCKER_HOST=f"unix://{tmp_path}/agent")
        failed = exeat(command=["sh", "-c", "false docker ps; docker ps"], env=env)
        assert f"--unix {tmp_path}/agent" in failed.stderr
        for options, command in ((("--quiet",), "docker ps; false"), ((), "true docker ps")):
            assert "--unix" not in exeat(*options, command=["sh", "-c", command], env=env).stderr


# As JSON


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@BY_USER
def test_the_summary_as_json(uid: int | None) -> None:
    with folder_of(uid) as folder:
        out = folder / "summary.json"
        program = f"{ASK}\ntry: open('summary.json')\nexcept PermissionError: sys.exit(3)"
        try_it = python(program, "http://evil.test/", "http://evil.test/")
        done = exeat("--quiet", "--summary-json", str(out), command=try_it, uid=uid, cwd=folder)
        assert (done.status, done.stdout) == (3, "403\n403\n"), "the file is hidden from the command"
        found = read(out)
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        assert [each.name for each in folder.iterdir()] == ["summary.json"]
    assert (found["version"], found["exit_status"], found["complete"], found["error"]) == (1, 3, True, None)
    assert found["denied"] == [
        {
            "host": "evil.test", "port": 80, "count": 2, "reason": "not-listed", "rule": "evil.test",
            "advice": "--allow evil.test",
        }
    ]  # fmt: skip


def test_it_is_written_if_nothing_happened_and_replaces_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "summary.json"
    out.write_text("old")
    out.chmod(0o644)
    assert exeat("--summary-json", str(out), command=["sh", "-c", "exit 5"]).status == 5
    found = read(out)
    assert (found["exit_status"], found["denied"], found["failed"], found["allowed"]) == (5, [], [], [])
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_what_was_not_started_is_said(tmp_path: Path) -> None:
    """Exit status 2 may be the command's own as well. This is not."""
    out = tmp_path / "summary.json"
    assert exeat("--summary-json", str(out), "--allow", "!!", command=["true"]).status == 2
    found = read(out)
    assert (found["exit_status"], found["complete"]) == (None, False)
    assert "--allow" in found["error"]
    assert exeat("--summary-json", str(out), command=["sh", "-c", "exit 2"]).status == 2
    assert (read(out)["exit_status"], read(out)["error"]) == (2, None)


def test_a_dash_is_standard_output(tmp_path: Path) -> None:
    done = exeat("--summary-json", "-", command=["sh", "-c", "echo said; exit 5"], cwd=tmp_path)
    said, _, summary = done.stdout.partition("\n")
    assert (done.status, said, json.loads(summary)["exit_status"]) == (5, "said", 5)
    assert list(tmp_path.iterdir()) == []
    done = exeat("--summary-json", "-", "--allow", "!!", command=["true"], cwd=tmp_path)
    assert (done.status, json.loads(done.stdout)["exit_status"]) == (2, None)


@pytest.mark.parametrize("where", ["missing/summary.json", "folder", "link", ""])
def test_a_file_that_cannot_be_written_means_that_nothing_starts(where: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    done = exeat("--summary-json", f"{tmp_path}/{where}", command=["echo", "started"])
    assert (done.status, done.stdout) == (2, "")
    assert "--summary-json" in done.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_it_is_no_file_that_the_run_has_another_use_for(tmp_path: Path) -> None:
    policy = tmp_path / "rules.txt"
    policy.write_text("good.test\n")
    done = exeat("--policy", str(policy), "--summary-json", str(policy), command=["echo", "started"])
    assert (done.status, done.stdout, policy.read_text()) == (2, "", "good.test\n")


@pytest.mark.parametrize("option", ["--summary-json", "--learn-out"])
def test_nor_one_in_which_the_log_goes_on(option: str, tmp_path: Path) -> None:
    """It would be written over at the end, and the log would have a gap."""
    log = tmp_path / "log"
    done = exeat("--audit", str(log), option, f"{log}.1", command=["echo", "started"])
    assert (done.status, done.stdout) == (2, "")
    assert not list(tmp_path.iterdir())
    assert exeat("--audit", str(log), option, f"{log}.summary", command=["true"]).status == 0
