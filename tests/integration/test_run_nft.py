"""`exeat run --jail nft` as a command, on a machine of the test's own that is joined to a world by a cable."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.scene import wait_until
from tests.support.jails.networks import PORT, Greeter, Networks
from tests.support.programs import Finished
from tests.support.runs.running import (
    ANYWHERE,
    AS_ROOT,
    Process,
    Running,
    environment,
    exeat,
    folder_of,
    python,
    wait_gone,
)

pytestmark = AS_ROOT
OTHER = 12_345
NAMED = ("--allow", f"good.test:{PORT}", "--add-host", "good.test:198.51.100.7")

TRY = """
import socket, sys
def attempt(what):
    try:
        return what()
    except OSError as error:
        return type(error).__name__
def tcp(host, port, wait=10):
    with socket.create_connection((host, int(port)), wait) as s:
        return s.recv(100).decode() or "closed"
def udp(host, port):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(b"datagram", (host, int(port)))
        return "sent"
"""


@pytest.fixture
def networks() -> Iterator[Networks]:
    made = Networks()
    yield made
    left = made.machine.tables()
    made.close()
    assert left == []


@pytest.fixture
def world(networks: Networks) -> Iterator[Greeter]:
    made = Greeter(networks.world, PORT, "world")
    yield made
    made.close()


def run(networks: Networks, *options: str, command: list[str], **popen: Any) -> Finished:
    settings: dict[str, Any] = {"cwd": ANYWHERE} | popen
    return exeat("--jail", "nft", *options, command=command, before=networks.machine.before, **settings)


def attempt(networks: Networks, expression: str, *options: str) -> str:
    done = run(networks, "--quiet", *options, command=python(f"{TRY}\nprint(attempt(lambda: {expression}))"))
    assert (done.status, done.stderr) == (0, "")
    return done.stdout.strip()


def attempt_outside(networks: Networks, expression: str, uid: int = OTHER) -> str:
    """The same, as someone whom no rule is about."""
    as_uid = ["setpriv", "--reuid", str(uid), "--clear-groups"]
    return networks.machine.run(*as_uid, *python(f"{TRY}\nprint(attempt(lambda: {expression}))")).strip()


# The command


@pytest.mark.parametrize("status", [0, 7, 255])
def test_the_exit_status_is_the_commands(networks: Networks, status: int) -> None:
    done = run(networks, command=["sh", "-c", f"exit {status}"])
    assert (done.status, done.stdout, done.stderr) == (status, "", "")


def test_other_ends_are_told_as_a_shell_tells_them(networks: Networks, tmp_path: Path) -> None:
    assert run(networks, command=["sh", "-c", "kill -TERM $$"]).status == 128 + signal.SIGTERM
    missing = run(networks, command=["/no/such/command"])
    assert (missing.status, missing.stderr) == (127, "exeat: /no/such/command: No such file or directory\n")
    assert run(networks, command=["/etc/passwd"]).status == 126


def test_the_command_is_a_user_of_its_own_without_rights(networks: Networks) -> None:
    done = run(networks, command=["sh", "-c", "id -u; id -g; id -un; cat /proc/self/status"])
    uid, gid, name, status = done.stdout.split("\n", 3)
    assert 0x7000_0000 <= int(uid) <= 0x7FFD_FFFF
    assert gid == uid
    assert name == "exeat"
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert {fields[key].split()[0] for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert fields["Uid"].split() == [uid] * 4
    assert fields["Gid"].split() == [uid] * 4
    assert fields["Groups"].split() == []
    assert fields["NoNewPrivs"].strip() == "1"
    assert fields["Seccomp"].strip() == "2"


def test_home_and_tmpdir_are_private_empty_and_gone_afterwards(networks: Networks) -> None:
    script = (
        'cd; pwd; ls -A "$HOME" "$TMPDIR"; echo x > "$HOME/file"; echo x > "$TMPDIR/file"; stat -c %a:%u "$HOME"; id -u'
    )
    secret = environment(XDG_CONFIG_HOME="/home/me/.config", HOME="/home/me")
    done = run(networks, command=["sh", "-c", script], env=secret)
    lines = done.stdout.splitlines()
    assert lines[:4] == ["/run/home", "/run/home:", "tmp", ""]
    assert lines[-2] == f"700:{lines[-1]}"
    assert not Path("/run/home").exists()
    assert run(networks, command=["env"], env=secret).stdout.count("XDG_CONFIG_HOME") == 0


def test_the_working_directory_is_kept_where_it_can_be_entered(networks: Networks) -> None:
    with folder_of(None) as folder:
        assert run(networks, command=["pwd"], cwd=str(folder)).stdout == f"{folder}\n"
        folder.chmod(0o700)
        done = run(networks, command=["pwd"], cwd=str(folder))
        assert (done.status, done.stdout) == (2, "")
        assert "the working directory cannot be entered" in done.stderr
        assert "a user of its own" in done.stderr


def test_files_of_the_caller_are_closed_to_it(networks: Networks) -> None:
    with folder_of(None) as folder:
        (folder / "secret").write_text("secret")
        (folder / "secret").chmod(0o600)
        done = run(networks, command=["cat", "secret"], cwd=str(folder))
        assert (done.status, done.stdout) == (1, "")


def test_somebody_without_rights_gets_an_error_and_no_other_jail(networks: Networks) -> None:
    done = exeat("--jail", "nft", command=["true"], uid=65_534, before=networks.machine.before, cwd=ANYWHERE)
    assert done.status == 2
    assert "the nft jail needs root" in done.stderr


# What it reaches


def test_an_allowed_name_is_reached_and_another_is_not(networks: Networks, world: Greeter) -> None:
    assert attempt(networks, f"tcp('evil.test', {PORT})", *NAMED) == "gaierror"
    assert attempt(networks, f"tcp('good.test', {PORT + 1})", *NAMED) == "ConnectionResetError"
    assert networks.witness.packets() == []
    assert attempt(networks, f"tcp('good.test', {PORT})", *NAMED) == "world"
    assert world.came == ["198.51.100.7"]


@pytest.mark.parametrize("address", ["203.0.113.9", "2001:db8::9"])
def test_a_literal_address_needs_a_rule_of_its_own(networks: Networks, world: Greeter, address: str) -> None:
    assert attempt_outside(networks, f"tcp('{address}9', {PORT})") == "world"
    assert attempt(networks, f"tcp('{address}', {PORT})", *NAMED) == "ConnectionResetError"
    assert networks.witness.packets(address) == []
    rule = f"[{address}]:{PORT}" if ":" in address else f"{address}:{PORT}"
    assert attempt(networks, f"tcp('{address}', {PORT})", "--allow", rule) == "world"


def test_the_machines_loopback_is_out_of_reach_unless_listed(networks: Networks) -> None:
    server = Greeter(networks.machine, 7070, "loopback", host="127.0.0.1")
    try:
        assert attempt_outside(networks, "tcp('127.0.0.1', 7070)") == "loopback"
        assert attempt(networks, "tcp('127.0.0.1', 7070)") == "ConnectionResetError"
        assert attempt(networks, "tcp('127.0.0.1', 7070)", "--allow", "127.0.0.1:7070") == "loopback"
    finally:
        server.close()


@pytest.mark.parametrize("address", ["203.0.113.9", "2001:db8::9", "127.0.0.1"])
def test_datagrams_are_dropped(networks: Networks, address: str) -> None:
    assert attempt_outside(networks, f"udp('{address}9'.replace('.19', '.1'), 4444)") == "sent"
    assert attempt(networks, f"udp('{address}', 4444)", "--allow", "203.0.113.9:*") == "PermissionError"
    assert networks.witness.packets(address) == []


def test_names_are_answered_by_exeat_alone(networks: Networks) -> None:
    found = attempt(networks, f"socket.getaddrinfo('good.test', {PORT}, type=socket.SOCK_STREAM)", *NAMED)
    assert "198.18." in found
    assert networks.witness.packets() == []


def test_what_was_blocked_is_told_and_recorded(networks: Networks) -> None:
    with folder_of(None) as folder:
        audit = folder / "audit.jsonl"
        program = f"{TRY}\nattempt(lambda: tcp('203.0.113.9', 80)); attempt(lambda: tcp('evil.test', 80))"
        done = run(networks, "--audit", str(audit), command=python(program))
        assert "203.0.113.9:80" in done.stderr
        assert "evil.test" in done.stderr
        decisions = [line for line in map(json.loads, audit.read_text().splitlines()) if line["event"] == "decision"]
        assert {(line["host"], line["verdict"], line["jail"]) for line in decisions} == {
            ("203.0.113.9", "deny", "nft"),
            ("evil.test", "deny", "nft"),
        }


# Ways round


def test_nothing_inside_can_be_reached_from_outside(networks: Networks) -> None:
    """What comes in would be answered by packets that belong to no one once the socket is closed."""
    assert attempt(networks, "socket.socket().listen(1)") == "PermissionError"
    assert attempt(networks, "socket.create_server(('0.0.0.0', 9999))") == "PermissionError"


def test_no_report_of_a_group_leaves(networks: Networks) -> None:
    join = "socket.socket(2, 2).setsockopt(0, 35, socket.inet_aton('239.7.7.7') + socket.inet_aton('10.9.0.2'))"
    assert attempt_outside(networks, join) == "None"
    wait_until(lambda: networks.witness.packets() != [], "the report of someone else")
    # Its second report, and the one for leaving, are on their way still: of this group only.
    assert attempt(networks, join.replace("239.7.7.7", "239.8.8.8")) == "PermissionError"
    assert not any(socket.inet_aton("239.8.8.8") in packet for packet in networks.witness.packets())


@pytest.mark.parametrize(
    "made",
    [
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)",
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
        "socket.socket(socket.AF_INET).setsockopt(0, 15, 1)",
    ],
    ids=["raw", "ping", "packet", "netfilter", "mptcp", "freebind"],
)
def test_other_kinds_of_sockets_are_refused(networks: Networks, made: str) -> None:
    assert attempt(networks, made) in ("PermissionError", "OSError")


def test_abstract_sockets_of_the_machine_are_out_of_reach(networks: Networks) -> None:
    def listen() -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.bind(f"\0exeat-test-{os.getpid()}")
        made.listen()
        return made

    connect = f"socket.socket(socket.AF_UNIX).connect('\\0exeat-test-{os.getpid()}')"
    with networks.machine.make(listen):
        assert attempt_outside(networks, connect) == "None"
        assert attempt(networks, connect) in ("PermissionError", "OSError")


def test_nobody_else_can_use_the_gateway(networks: Networks, tmp_path: Path) -> None:
    """Neither as a proxy, nor as a resolver. Root is no exception."""
    with Running(
        tmp_path,
        "--jail",
        "nft",
        *NAMED,
        command=["sh", "-c", "echo up; exec sleep 1000"],
        before=networks.machine.before,
        cwd=ANYWHERE,
    ) as running:
        running.wait_for("up")
        rules = networks.machine.run("nft", "list", "ruleset")
        ports = sorted(set(re.findall(r"redirect to :(\d+)", rules)))
        assert len(ports) == 2
        for uid in (OTHER, 0):
            for port in ports:
                assert attempt_outside(networks, f"tcp('127.0.0.1', {port}, 0.5)", uid) == "TimeoutError"
        running.process.terminate()
        assert running.wait() == 128 + signal.SIGTERM


# Ends, crashes, company


def test_killing_exeat_kills_the_command_and_the_next_start_cleans_up(networks: Networks, tmp_path: Path) -> None:
    command = ["sh", "-c", "echo up; sleep 1000 & exec sleep 1000"]
    with Running(tmp_path, "--jail", "nft", command=command, before=networks.machine.before, cwd=ANYWHERE) as running:
        running.wait_for("up")
        everybody: list[Process] = [running.init(), running.gateway(), *running.inside()]
        assert len(everybody) >= 4
        (left,) = networks.machine.tables()
        running.process.kill()
        running.wait()
        wait_gone(everybody)
    assert run(networks, command=["true"]).status == 0
    assert left not in networks.machine.tables()


def test_killing_the_gateway_leaves_no_way_out(networks: Networks, world: Greeter, tmp_path: Path) -> None:
    program = f"""{TRY}
print(tcp('203.0.113.9', {PORT}), flush=True)
sys.stdin.readline()
print(attempt(lambda: tcp('203.0.113.9', {PORT}, 2)), attempt(lambda: udp('203.0.113.9', 53)), flush=True)
"""
    reader, writer = os.pipe()
    with Running(
        tmp_path,
        "--jail",
        "nft",
        "--allow",
        f"203.0.113.9:{PORT}",
        command=python(program),
        before=networks.machine.before,
        cwd=ANYWHERE,
        stdin=reader,
    ) as running:
        os.close(reader)
        running.wait_for("world")
        gateway = running.gateway()
        gateway.kill()
        wait_gone([gateway])
        networks.witness.packets()
        os.write(writer, b"go\n")
        os.close(writer)
        assert running.wait() == 0
        assert running.out.splitlines()[-1] == "ConnectionRefusedError sent"
        assert networks.witness.packets() == []
        assert len(world.came) == 1


def test_runs_at_the_same_time_have_uids_and_rules_of_their_own(networks: Networks, world: Greeter) -> None:
    program = (
        f"{TRY}\nimport os\nprint('up', os.getuid(), flush=True)\nsys.stdin.readline()\n"
        f"print(attempt(lambda: tcp('good.test', {PORT})), flush=True)"
    )
    reader, writer = os.pipe()
    common: dict[str, Any] = {"before": networks.machine.before, "cwd": ANYWHERE, "stdin": reader}
    with folder_of(None) as first, folder_of(None) as second, \
            Running(first, "--jail", "nft", *NAMED, command=python(program), **common) as one, \
            Running(second, "--jail", "nft", command=python(program), **common) as two:  # fmt: skip
        os.close(reader)
        one.wait_for("up")
        two.wait_for("up")
        assert len(networks.machine.tables()) == 2
        assert one.out.split()[1] != two.out.split()[1]
        os.write(writer, b"go\n")
        os.close(writer)
        assert (one.wait(), two.wait()) == (0, 0)
        assert one.out.split()[-1] == "world"
        assert two.out.split()[-1] == "gaierror"


def test_a_failed_start_leaves_nothing_behind(networks: Networks) -> None:
    assert run(networks, "--policy", "/no/such/file.toml", command=["true"]).status == 2
    assert run(networks, "--unix", "/no/such/socket", command=["true"]).status == 2
    assert networks.machine.tables() == []
