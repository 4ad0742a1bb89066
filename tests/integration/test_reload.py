"""B8, E3, A8: rules change under a running gateway, whole or not at all."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from exeat.audit.verify import verify_files
from tests.support.clients.talk import connect_dial, read_exactly, socks_dial
from tests.support.fixtures.gateways import StartRawOrigin, StartServing
from tests.support.gateways.gate import read_all, read_until
from tests.support.gateways.scene import wait_until
from tests.support.gateways.serving import HOSTS, Serving
from tests.support.origins.raw import PING, PONG, keep_silent


def rules(port: int, *names: str) -> str:
    return f"allow = [{', '.join(repr(f'{name}:{port}') for name in names)}]\n"


def write_in_place(path: Path, text: str) -> None:
    path.write_text(text)


def write_beside_and_rename(path: Path, text: str) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)


def write_with_the_old_time(path: Path, text: str) -> None:
    """As a tool that keeps time stamps does: another file, of the same time and size."""
    before = path.stat()
    draft = path.with_suffix(".new")
    draft.write_text(text.ljust(before.st_size))
    os.utime(draft, ns=(before.st_atime_ns, before.st_mtime_ns))
    draft.replace(path)


def link_to_another(path: Path, text: str) -> None:
    """As Kubernetes mounts a ConfigMap: the name is a link, and the link is swapped."""
    target = path.with_name("data.toml")
    target.write_text(text)
    link = path.with_suffix(".link")
    link.symlink_to(target)
    link.replace(path)


def wait_for(serving: Serving, event: str, count: int = 1) -> None:
    wait_until(lambda: len(serving.lines(event)) >= count, f"{count} {event}")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sighup_puts_the_new_rules_in_force(
    workers: str, serve: StartServing, start_raw_origin: StartRawOrigin
) -> None:
    """B8: by every worker, and stderr and the log tell of it."""
    origin = start_raw_origin()
    serving = serve("--workers", workers, *HOSTS, policy=rules(origin.port, "good.test"))
    assert serving.get("other.test", origin.port).status == 403
    write_in_place(serving.policy, rules(origin.port, "other.test"))
    serving.signal(signal.SIGHUP)
    wait_for(serving, "reload", int(workers))
    for _ in range(4):
        assert serving.get("other.test", origin.port).status == 200
        assert serving.get("good.test", origin.port).status == 403
    assert "exeat: reloaded (" in serving.errors
    digests = {line["policy"] for line in serving.lines()}
    assert len(digests) == 2


@pytest.mark.parametrize("write", [write_in_place, write_beside_and_rename, write_with_the_old_time, link_to_another])
def test_a_changed_file_is_noticed(write: object, serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """B8: without a signal, however the file was written."""
    assert callable(write)
    origin = start_raw_origin()
    serving = serve(*HOSTS, policy=rules(origin.port, "good.test", "unused.test"))
    assert serving.get("other.test", origin.port).status == 403
    write(serving.policy, rules(origin.port, "other.test"))
    wait_for(serving, "reload")
    assert serving.get("other.test", origin.port).status == 200
    assert serving.get("good.test", origin.port).status == 403
    assert "reloaded (file changed)" in serving.errors


@pytest.mark.threat("T-A8")
def test_a_broken_file_keeps_the_last_good_rules(serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """Each failure is on stderr with file, line and column, and in the log; a good file later takes effect."""
    origin = start_raw_origin()
    serving = serve(*HOSTS, policy=rules(origin.port, "good.test"))
    for number, (text, place) in enumerate(
        (
            ("allow = [oops]\n", ":1:10:"),
            ('allow = ["*"]\n', ":1:"),
            ("deny = 7\n", ":1:"),
            ("[limits]\nx = 1\n", ":2:"),
        ),
        1,
    ):
        write_beside_and_rename(serving.policy, text)
        serving.signal(signal.SIGHUP)
        wait_for(serving, "reload-failed", number)
        assert serving.get("good.test", origin.port).status == 200
        assert serving.get("evil.test", origin.port).status == 403
        assert f"{serving.policy}{place}" in serving.errors.splitlines()[-1] + serving.errors.splitlines()[-2]
    serving.policy.unlink()
    serving.signal(signal.SIGHUP)
    wait_for(serving, "reload-failed", 5)
    assert serving.get("good.test", origin.port).status == 200
    assert "the last good policy stays in force" in serving.errors
    write_in_place(serving.policy, rules(origin.port, "other.test"))
    serving.signal(signal.SIGHUP)
    wait_for(serving, "reload")
    assert serving.get("good.test", origin.port).status == 403
    assert serving.get("other.test", origin.port).status == 200
    assert verify_files([str(serving.audit)]).ok


@pytest.mark.threat("T-A8")
def test_a_reload_that_changes_nothing_touches_nothing(serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """A comment or another order is the same policy: no line in the log, and tunnels stay."""
    origin = start_raw_origin()
    serving = serve(*HOSTS, policy=rules(origin.port, "good.test", "other.test"))
    with serving.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % origin.port).status == 200
        write_in_place(serving.policy, "# a comment\n" + rules(origin.port, "other.test", "good.test"))
        serving.signal(signal.SIGHUP)
        conn.sendall(PING)
        assert read_until(conn, PONG) == PONG
    serving.signal(signal.SIGTERM)
    assert serving.process.wait(60) == 0
    assert serving.lines("reload") == []


@pytest.mark.parametrize("through", ["connect", "socks"])
def test_a_reload_cuts_the_tunnels_that_it_no_longer_allows(
    through: str, serve: StartServing, start_raw_origin: StartRawOrigin
) -> None:
    """E3: and no others; the number is in the log, and the end line says why."""
    origin = start_raw_origin(keep_silent)
    serving = serve(*HOSTS, policy=rules(origin.port, "good.test", "other.test"))
    with serving.connect() as cut, serving.connect() as kept:
        for conn, host in ((cut, b"other.test"), (kept, b"good.test")):
            if through == "connect":
                assert connect_dial(conn, b"%b:%d" % (host, origin.port)).status == 200
            else:
                assert socks_dial(conn, host, origin.port) == 0
        write_in_place(serving.policy, rules(origin.port, "good.test"))
        serving.signal(signal.SIGHUP)
        assert read_all(cut) == b""
        kept.sendall(b"\x80")
        wait_until(lambda: origin.received == 1, "the other tunnel's byte")
        wait_for(serving, "end")
    assert serving.lines("reload")[0]["cut"] == 1
    assert [line["note"] for line in serving.lines("end") if line["host"] == "other.test"] == ["revoked"]
    assert "1 connections no longer allowed and closed" in serving.errors


def test_a_deny_rule_that_is_added_cuts_too(serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """E3: deny beats allow for what is open already."""
    origin = start_raw_origin(keep_silent)
    serving = serve(*HOSTS, policy=rules(origin.port, "good.test"))
    with serving.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % origin.port).status == 200
        write_in_place(serving.policy, rules(origin.port, "good.test") + 'deny = ["good.test:*"]\n')
        serving.signal(signal.SIGHUP)
        assert read_exactly(conn, 1) == b""


def test_a_reload_changes_limits(serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """B8: limits in the file count from then on, for connections that come."""
    origin = start_raw_origin()
    text = rules(origin.port, "good.test")
    serving = serve(*HOSTS, policy=text)
    with serving.connect() as first:
        write_in_place(serving.policy, text + "[limits]\nmax_connections = 1\n")
        serving.signal(signal.SIGHUP)
        wait_for(serving, "reload")
        assert serving.get("good.test", origin.port).status == 503
        first.sendall(b"x")
    wait_until(lambda: serving.get("good.test", origin.port).status == 200, "the first to leave")


@pytest.mark.threat("T-A8")
def test_many_reloads_at_once_end_with_the_last_file(serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """A storm of edits and signals leaves the last edit's rules in force, and requests are served throughout."""
    origin = start_raw_origin()
    serving = serve(*HOSTS, policy=rules(origin.port, "good.test"))
    for number in range(40):
        names = ("good.test", "other.test") if number % 2 else ("good.test",)
        write_beside_and_rename(serving.policy, rules(origin.port, *names))
        serving.signal(signal.SIGHUP)
        assert serving.get("good.test", origin.port).status == 200
    wait_until(lambda: serving.get("other.test", origin.port).status == 200, "the last rules")
    assert "failed" not in serving.errors
