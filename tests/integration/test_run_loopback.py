"""Loopback inside a jail is the jail's own, except for what a rule lists: there the host is meant."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runs.running import exeat, python

CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as connection:
        print(connection.makefile().readline().strip() or "nothing")
except OSError as error:
    print(type(error).__name__)
"""
SERVE_AND_CONNECT = """
import socket, sys, threading
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
def serve():
    connection, _ = listener.accept()
    connection.sendall(b"the jail\\n")
    connection.close()
threading.Thread(target=serve, daemon=True).start()
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as connection:
    print(connection.makefile().readline().strip())
"""  # noqa: E501 - a program


@pytest.fixture(params=["127.0.0.1", "::1"])
def host(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A server of the host that speaks first."""
    address = str(request.param)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"the host\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield address, listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def authority(host: tuple[str, int]) -> str:
    return f"[{host[0]}]:{host[1]}" if ":" in host[0] else f"{host[0]}:{host[1]}"


def test_a_listed_address_and_port_mean_the_host(host: tuple[str, int]) -> None:
    done = exeat("--allow", authority(host), command=python(CONNECT, host[0], str(host[1])))
    assert done.stdout == "the host\n", done


def test_without_a_rule_there_is_nobody(host: tuple[str, int]) -> None:
    done = exeat("--allow", "good.test", command=python(CONNECT, host[0], str(host[1])))
    assert done.stdout == "ConnectionRefusedError\n", done


def test_another_port_of_a_listed_address_stays_inside(host: tuple[str, int]) -> None:
    other = authority((host[0], 1))
    done = exeat("--allow", other, command=python(CONNECT, host[0], str(host[1])))
    assert done.stdout == "ConnectionRefusedError\n", done


def test_a_name_that_leads_there_is_no_reason(host: tuple[str, int]) -> None:
    rule = f"good.test:{host[1]}"
    done = exeat("--allow", rule, "--add-host", f"good.test:{host[0]}", command=python(CONNECT, host[0], str(host[1])))
    assert done.stdout == "ConnectionRefusedError\n", done


def test_a_denied_port_is_denied(host: tuple[str, int]) -> None:
    place = authority(host)
    done = exeat("--allow", place, "--deny", place, command=python(CONNECT, host[0], str(host[1])))
    assert done.stdout in ("ConnectionResetError\n", "nothing\n"), done
    assert f"{place}" in done.stderr


def test_the_jails_own_servers_have_the_port_otherwise(host: tuple[str, int]) -> None:
    done = exeat("--allow", "good.test", command=python(SERVE_AND_CONNECT, host[0], str(host[1])))
    assert done.stdout == "the jail\n", done


# By the name `localhost`

FETCH = """
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler() if sys.argv[2] == "env" else urllib.request.ProxyHandler({}))
try:
    print(opener.open(sys.argv[1], timeout=10).read().decode())
except OSError as error:
    print(type(error).__name__, getattr(error, "code", ""))
"""  # noqa: E501 - a program


@pytest.fixture(params=["127.0.0.1", "::1"])
def web(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A web server of the host that listens on one address of loopback, and says which Host it was asked for."""
    address = str(request.param)

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"the host, asked as {self.headers['Host']}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            pass

    with Server((address, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield address, server.server_address[1]
        server.shutdown()
        thread.join(10)


def jails() -> list[str]:
    return ["netns", "env", *(["nft"] if os.geteuid() == 0 else [])]


@pytest.mark.parametrize("jail", jails())
@pytest.mark.parametrize("rule", ["localhost", "its own"])
@pytest.mark.parametrize("by", ["localhost", "its own"])
def test_a_web_server_of_the_host(web: tuple[str, int], jail: str, rule: str, by: str) -> None:
    """Whether the rule and the URL name it or give its address, it is the host's port, and Host arrives as asked."""
    own = authority(web)
    named = f"localhost:{web[1]}"
    asked = named if by == "localhost" else own
    allow = named if rule == "localhost" else own
    command = python(FETCH, f"http://{asked}/", "none" if jail != "env" else "env")
    done = exeat("--jail", jail, "--allow", allow, command=command)
    assert done.stdout == f"the host, asked as {asked}\n", done


@pytest.mark.parametrize("by", ["localhost", "127.0.0.1"])
def test_with_proxy_variables_it_is_the_same(by: str) -> None:
    """Loopback is asked directly, since NO_PROXY says so; a program that asks the proxy all the same gets there too."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for no_proxy in ((), ("--env", "NO_PROXY=", "--env", "no_proxy=")):
            url = f"http://{by}:{port}/none"
            done = exeat("--allow", f"localhost:{port}", *no_proxy, command=python(FETCH, url, "env"))
            assert done.stdout == "HTTPError 404\n", done
        server.shutdown()


def test_a_rule_by_name_leaves_other_ports_to_the_jail(web: tuple[str, int]) -> None:
    command = python(FETCH, f"http://localhost:{web[1]}/", "none")
    done = exeat("--allow", "localhost:1", command=command)
    assert done.stdout == "URLError \n", done


@pytest.mark.parametrize("denied", ["localhost", "its own"])
def test_a_denial_by_name_or_by_address_holds_for_both(web: tuple[str, int], denied: str) -> None:
    place, named = authority(web), f"localhost:{web[1]}"
    deny = named if denied == "localhost" else place
    for allow in (place, named):
        for url in (place, named):
            command = python(FETCH, f"http://{url}/", "none")
            done = exeat("--allow", allow, "--deny", deny, command=command)
            assert "the host" not in done.stdout, (allow, url, done)


def test_another_name_in_the_host_header_is_misdirected(web: tuple[str, int]) -> None:
    program = (
        "import socket, sys\nc = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)\n"
        "c.sendall(b'GET / HTTP/1.1\\r\\nHost: evil.test\\r\\n\\r\\n')\nprint(c.recv(100)[:12])"
    )
    for rule in ("localhost", "own"):
        allow = f"localhost:{web[1]}" if rule == "localhost" else authority(web)
        done = exeat("--allow", allow, command=python(program, web[0], str(web[1])))
        assert done.stdout == "b'HTTP/1.1 421'\n", done


def test_what_the_host_offers_is_told_when_nothing_listens_inside(web: tuple[str, int], tmp_path: Path) -> None:
    """The command tried a port of loopback that only the host serves: on record, and in the summary, with the rule."""
    audit = tmp_path / "audit.jsonl"
    command = python(FETCH, f"http://localhost:{web[1]}/", "none")
    done = exeat("--allow", "good.test", "--audit", str(audit), command=command)
    assert done.stdout == "URLError \n"
    (line,) = [each for each in map(json.loads, audit.read_text().splitlines()) if each["event"] == "decision"]
    assert (line["verdict"], line["host"], line["port"], line["reason"]) == ("deny", "localhost", web[1], "not-listed")
    assert f"--allow localhost:{web[1]}" in done.stderr


def test_a_port_that_nobody_serves_is_not_worth_a_word(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
        done = exeat("--allow", "good.test", "--audit", str(audit), command=python(CONNECT, "127.0.0.1", port))
    assert done.stdout == "ConnectionRefusedError\n"
    assert [json.loads(line)["event"] for line in audit.read_text().splitlines()] == ["start", "stop"]
